"""Before training: noise for the target, epsilon for every adversary, and designs compared."""
