"""How the ranks of a run meet, on one machine or on several."""
