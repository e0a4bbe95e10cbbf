"""The tables and figures of four papers as entries, a file a paper."""
