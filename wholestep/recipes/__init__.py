"""Recipes: Python functions that return a config tree, one file a model family."""
