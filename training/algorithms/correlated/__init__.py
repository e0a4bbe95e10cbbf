"""Algorithms whose noise is correlated across agents."""
