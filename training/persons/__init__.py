"""What one person loses: records at several agents, and several runs."""
