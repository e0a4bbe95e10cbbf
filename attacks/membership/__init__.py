"""Membership inference: which records were trained on, as the final models alone tell it."""
