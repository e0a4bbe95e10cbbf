"""Checks of a run that need no canaries: messages, residuals, sampler, knowledge, functions."""
