"""Canaries and their scores: what the audit plays."""
