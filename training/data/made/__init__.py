"""Data that are made by a public seed."""
