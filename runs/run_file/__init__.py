"""The run file.

Its tables, what is refused, the objects that it names, and what a stranger's file may make run.
"""
