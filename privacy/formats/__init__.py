"""Files that others may have made: looked at, bounded, and then read.

Nothing is unpacked or allocated because a file says so: what it announces is held first against a
bound and against what the file holds. Whatever a library raises on bytes becomes one `InputError`
(`privacy.files.decoding`). No pickle is loaded. What has tensors goes on to
`training.engine.tensor_file`, since nothing here imports torch.

JSON is read by `codec`, and so is what we write ourselves, as dataclasses that are their own JSON.
"""
