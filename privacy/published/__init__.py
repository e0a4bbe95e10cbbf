"""The papers' own bounds, those of gossip in `whisper`, labelled as theirs."""
