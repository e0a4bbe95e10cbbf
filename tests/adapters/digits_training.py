"""The user's training of the how-to, with a place for each fault."""
