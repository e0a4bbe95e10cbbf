"""Tests of the noise of a run while it trains: moments, shape and repetition, round by round."""
