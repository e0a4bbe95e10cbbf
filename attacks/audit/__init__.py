"""Canaries and their scores: the game that the audit plays, on records, agents and whole runs."""
