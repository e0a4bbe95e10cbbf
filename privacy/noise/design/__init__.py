"""The best Gaussian noise for a graph and a number of rounds: over time, across agents, or both."""
