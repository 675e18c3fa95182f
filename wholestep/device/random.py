"""The random generator of the device: a seed, and how many draws were made. A draw depends on both alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
import torch
from torch import Tensor


class Generator:
    """Gives each random operator numbers of its own.

    Attributes:
        seed: of all draws.
        drawn: how many there were.
    """

    def __init__(self) -> None:
        self.seed = 0
        self.drawn = 0
        self._given: torch.Generator | None = None

    @contextlib.contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        """Draw what random operators draw from in here from one of PyTorch's own."""
        before, self._given = self._given, generator
        try:
            yield
        finally:
            self._given = before

    def draw(self) -> np.ndarray:
        """What the next random operator draws from, uint32[2]."""
        if self._given is not None:
            return torch.randint(2**32, (2,), generator=self._given).numpy().astype(np.uint32)
        self.drawn += 1
        return np.array([self.seed % 2**32, (self.drawn + (self.seed >> 32) * 0x9E3779B1) % 2**32], np.uint32)

    def key(self) -> jax.Array:
        """The same for a program whose draws have a key."""
        seed, number = self.draw()
        return jax.random.fold_in(jax.random.key(seed), number)

    def manual_seed(self, seed: int) -> None:
        """Start again from this seed."""
        self.seed = seed % 2**64
        self.drawn = 0

    def state(self) -> Tensor:
        """uint8[16], on the CPU."""
        return torch.from_numpy(np.array([self.seed, self.drawn], np.uint64).view(np.uint8).copy())

    def set_state(self, state: Tensor) -> None:
        """Go on as the generator did whose state this is.

        Raises:
            ValueError: it is none.
        """
        if state.dtype != torch.uint8 or state.numel() != 16:
            raise ValueError(f"a state of the tpu generator is uint8[16], got {state.dtype}{list(state.shape)}")
        self.seed, self.drawn = (int(word) for word in state.cpu().numpy().view(np.uint64))


GENERATOR = Generator()
