"""Canaries that are all data of an agent: what is planted, played and scored."""
