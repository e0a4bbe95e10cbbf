"""What agents far from a record learn of it: steered figures, their hypotheses, and estimates."""
