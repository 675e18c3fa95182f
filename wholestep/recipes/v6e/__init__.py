"""Recipes for v6e: 32 GiB a chip, one device each, a 2-d torus."""
