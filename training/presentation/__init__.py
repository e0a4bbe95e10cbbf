"""How an account is shown: as text, in a notebook, in words, as a table, as a chart."""
