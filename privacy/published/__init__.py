"""The papers' own bounds, one file a paper, labelled as theirs."""
