"""Networks with a forward of their own: what they compute, and whether examples meet in it."""
