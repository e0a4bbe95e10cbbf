"""The run file: its tables, what is refused, and the objects that it names."""
