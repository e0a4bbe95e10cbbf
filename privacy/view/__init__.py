"""An adversary's view as two matrices: what one record can change in it, against which noise."""
