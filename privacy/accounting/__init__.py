"""The accountant: epsilon, delta and noise of composed, Poisson-sampled Gaussian rounds."""
