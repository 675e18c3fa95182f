"""Recipes for TPU7x: 192 GiB a chip, two devices each, a 3-d torus."""
