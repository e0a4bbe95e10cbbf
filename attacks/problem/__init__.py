"""What an inversion is given, and what it looks for."""
