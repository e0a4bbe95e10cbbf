"""Facts become findings, and findings become words."""
