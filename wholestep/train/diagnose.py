"""What to say when the loss is no longer a number."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from wholestep.errors import NonFiniteError
from wholestep.xla.program import Program, State
from wholestep.xla.stacking import unstack


def non_finite(program: Program, step: int, state: State, metrics: Mapping[str, jax.Array]) -> NonFiniteError:
    """An error that names the first parameter, in the model's order, whose value or else whose gradient is not finite.

    Args:
        program: the training step.
        step: its number.
        state: after the step; a step whose loss or gradients are not finite leaves its state as it was.
        metrics: of the step.
    """
    (trained,) = (value.members for value in program.step.outputs if value.name == "metric/grad_norms")
    state = unstack(state, program.step, program.mesh)
    what = f"step {step}: the loss is {float(metrics['loss'])}, the gradient norm {float(metrics['grad_norm'])}"
    for name in trained:
        if not bool(jnp.isfinite(state[f"parameter/{name}"]).all()):
            return NonFiniteError(f"{what}; the first parameter with a non-finite value is {name}")
    bad = [name for name, norm in zip(trained, metrics["grad_norms"], strict=True) if not np.isfinite(norm)]
    where = f"the first with a non-finite gradient is {bad[0]}" if bad else "and so is every gradient"
    return NonFiniteError(f"{what}; every parameter is finite, {where}")
