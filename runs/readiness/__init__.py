"""Before training: whether a run file can be trained, attacked and audited."""
