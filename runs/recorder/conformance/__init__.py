"""Whether what was kept of a recorded system is what its log says."""
