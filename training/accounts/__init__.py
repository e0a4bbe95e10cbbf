"""From an algorithm to its account: traced, checked, accounted for, in one call."""
