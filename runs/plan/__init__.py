"""Before training: noise for the target, and epsilon for every adversary."""
