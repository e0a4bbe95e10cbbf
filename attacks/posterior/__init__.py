"""What public records say of a victim's record, weighed by the likelihood of what was observed."""
