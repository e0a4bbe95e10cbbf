"""A table or figure of a paper, run again: its lines beside the paper's, verdicts, and prices."""
