"""The operations that an algorithm's step may use, and the values that they act on."""
