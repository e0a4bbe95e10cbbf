"""Algorithms whose noise remembers: later rounds take back some of what earlier ones added."""
