"""A sweep as tables, plots and a page."""
