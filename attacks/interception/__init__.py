"""From intercepted messages to an estimate of a victim's gradient."""
