"""Releases of systems that run elsewhere: what each is made of, as somebody declares it."""
