"""Checks of a run that need no canary.

Noise, messages, sampler, knowledge, functions, values, records, sensitivity, and the transcript of
a folder; what they watch of a run, and the laws that they judge by.
"""
