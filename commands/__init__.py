"""The command line, a file a command.

Before a run (new, budget, plan), those that make a run or evidence about one, and those that read a
folder.
"""
