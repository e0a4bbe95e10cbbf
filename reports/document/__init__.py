"""The privacy report: collected, and written as a page, as Markdown or as JUnit."""
