"""An algorithm's step run on symbols: what it sends, as linear forms over gradients and noise."""
