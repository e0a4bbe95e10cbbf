"""Lower bounds on epsilon from guesses, and the mechanisms that they choose among."""
