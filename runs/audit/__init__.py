"""The audit of a run file or of a run folder.

Membership and last models, and the evidence file that they write.
"""
