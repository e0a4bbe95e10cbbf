"""Per-example clipped gradient sums.

In layouts that differ in speed alone, the rule that takes one, and forwards in which examples do
not meet.
"""
