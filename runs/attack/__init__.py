"""The attack on a run folder, and on gradients from elsewhere."""
