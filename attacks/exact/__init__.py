"""Stages that read records out of a gradient in closed form, with a certificate."""
