"""The best noise for a run file, compared at equal epsilon of its own sampling."""
