"""Files that others may have made, a format a file: looked at, bounded, and then read.

Nothing is unpacked or allocated because a file says so: what it announces is held first against a
bound and against what the file holds. Whatever a library raises on bytes becomes one `InputError`
(`privacy.bounded.decoding`). No pickle is loaded. What has tensors goes on to
`training.engine.tensor_file`, since nothing here imports torch.

What we write ourselves, as dataclasses that are their own JSON, is read and written by `codec`.
"""
