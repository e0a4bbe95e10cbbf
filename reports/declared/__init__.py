"""What somebody declared of a system that runs elsewhere: the table, the page and the gate."""
