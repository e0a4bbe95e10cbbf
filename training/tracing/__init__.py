"""An algorithm's step run on unit sources: what it sends, as rows over contributions and noise."""
