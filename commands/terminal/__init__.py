"""Tables, progress and sentences on a terminal."""
