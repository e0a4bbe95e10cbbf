"""What runs from Python give back, and how it is shown in a notebook."""
