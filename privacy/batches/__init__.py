"""Batches that are not Poisson: how they are drawn, and what is known of a unit's part in them."""
