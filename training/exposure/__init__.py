"""From a trace to joint sensitivities and guarantees, for every adversary."""
