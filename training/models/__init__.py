"""Networks, tasks, flat parameters, and their evaluation."""
