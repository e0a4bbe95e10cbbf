"""A run folder becomes something to read, compare and sign."""
