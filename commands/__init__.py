"""The command line, a file for each thing that is done.

Before a run (new, account, plan), what makes a run or evidence about one (train, attack, audit,
sweep), and what reads a folder (report).
"""
