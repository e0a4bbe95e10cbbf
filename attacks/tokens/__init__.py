"""Attacks on models of tokens, whose inputs are whole numbers that an embedding looks up."""
