"""The operations that an algorithm's step may use.

The handles that it holds, the script that a round follows, and which functions of a step are
functions of their arguments alone.
"""
