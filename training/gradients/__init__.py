"""Per-example clipped gradient sums, in layouts that differ in speed alone."""
