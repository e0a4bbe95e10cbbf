"""Algorithms for min-max tasks."""
