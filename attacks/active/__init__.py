"""A neighbour that deviates: models crafted so that a gradient on them gives records away."""
