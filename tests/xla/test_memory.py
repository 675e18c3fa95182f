"""Moves to the host's memory and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from wholestep.graph.memory import to_device, to_host
from wholestep.xla.lowering import LOWERINGS


def test_a_program_for_tpu_says_where_values_are_and_one_for_the_cpu_need_not() -> None:
    there, back = LOWERINGS[to_host].function, LOWERINGS[to_device].function
    x = jnp.arange(12.0).reshape(3, 4)
    moved = jax.jit(lambda x: back(there(x)))
    text = moved.trace(x).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("annotate_device_placement") == 2 and '_xla_buffer_placement = "pinned_host"' in text
    assert np.array_equal(moved(x), x)
