"""An entry of a paper, and its run: lines beside the paper's, verdicts, prices; reviews."""
