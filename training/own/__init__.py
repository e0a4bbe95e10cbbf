"""Data, models and algorithms of one's own: how their names in a run file are found."""
