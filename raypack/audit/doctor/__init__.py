"""Every way to pack for a model, tried on a tiny copy of it."""
