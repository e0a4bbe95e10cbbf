"""The search for records whose gradient is the one observed.

And what an attacker that alters models plants in them.
"""
