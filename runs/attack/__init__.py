"""The attack on a run folder."""
