"""A run that is watched: what it drew, computed and sent, and an oracle to check it against."""
