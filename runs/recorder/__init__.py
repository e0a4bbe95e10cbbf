"""A recorder for systems of one's own: what they release, written down before it leaves."""
