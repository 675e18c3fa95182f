"""Wholestep: train PyTorch models on TPU with the whole training step as one XLA program."""

__version__ = "0.1.0"
