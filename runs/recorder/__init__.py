"""A recorder for systems of one's own.

What they release, written down before it leaves, and the check that a program does what it
recorded.
"""
