"""Code of the user in a run: which files it is, whether it is still the same, and who trusts it."""
