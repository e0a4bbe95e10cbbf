"""Communication graphs and their mixing matrices."""
