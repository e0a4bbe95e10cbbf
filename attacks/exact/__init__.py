"""Stages that read records out of a gradient in closed form.

Each with a certificate, and what separates the records of a batch.
"""
