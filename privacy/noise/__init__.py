"""Noise across agents and over rounds.

Covariances, schedules of clip norm and budget, and the best noise for a graph and a number of
rounds.
"""
