"""Noise across agents and over rounds: covariances, and schedules of clip norm and budget."""
