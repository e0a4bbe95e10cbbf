"""What attack and audit leave in a run folder, and the assumptions of a report."""
