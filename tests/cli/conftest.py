from tiny_run import corpus, overrides, own_cache, recipe

__all__ = ["corpus", "overrides", "own_cache", "recipe"]
