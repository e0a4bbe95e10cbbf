"""The attack on gradients from elsewhere."""
