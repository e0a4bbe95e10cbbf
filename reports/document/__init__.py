"""The report.

Collected from a run folder or from a declared log, and written as a page, as Markdown or as JUnit.
"""
