"""A second tracer: the same steps read on dense numbers, by other code, to hold figures against."""
