"""What a maintained library says of the same rounds: dp-accounting's bounds beside ours."""
