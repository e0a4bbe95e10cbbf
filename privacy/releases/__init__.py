"""What was released.

The chained lines of a run's ledger and of a person's, the logs that somebody declares, and what
each adversary sees of them.
"""
