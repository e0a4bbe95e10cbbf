"""All agents of a run on tensors, in one process or over ranks."""
