"""Watched rounds made again on neighbouring data, and what one record changes in them."""
