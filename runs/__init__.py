"""A run file becomes a run folder: planned, trained, attacked, audited, with its evidence."""
