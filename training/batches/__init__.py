"""Drawing batches that are not Poisson, as the accountant takes them to be drawn."""
