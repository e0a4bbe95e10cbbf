"""What the engine asks of torch and of a device: precision, repetition, and memory."""
