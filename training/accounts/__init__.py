"""An algorithm's account in one call.

Its numbers read, traced at their noise, checked against a second trace, and stated, as rows and as
a paragraph.
"""
