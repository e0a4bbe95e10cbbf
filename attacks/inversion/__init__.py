"""The search for records whose gradient is the one observed."""
