"""Functions that a step gives to a round: what they may hold, and the copies that run."""
