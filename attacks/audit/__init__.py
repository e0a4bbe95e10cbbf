"""Canaries, their scores, and lower bounds on epsilon."""
