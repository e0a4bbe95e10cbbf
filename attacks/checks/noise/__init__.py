"""Checks of the noise that messages hold, and of the streams that it comes from."""
