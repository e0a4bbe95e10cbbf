"""Files of what was released: the ledger of a run, and that of a person over runs."""
