"""Audits and attacks of training that runs elsewhere: scores, canaries, and the user's `train`."""
