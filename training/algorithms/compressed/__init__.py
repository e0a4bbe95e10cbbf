"""Algorithms that send compressed differences to copies that everybody can compute."""
