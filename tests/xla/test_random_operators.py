"""Every random operator: the distribution that it draws from, and that it draws the same for rows that are split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from xla.lowering_samples import Sample, row
from xla.test_lowering import as_float32, graph_of, run

from wholestep.errors import LoweringError
from wholestep.graph.trace import trace
from wholestep.xla.draws import Draws
from wholestep.xla.function import GraphFunction
from wholestep.xla.interpret import Interpreter
from wholestep.xla.lowering import LOWERINGS

aten = torch.ops.aten
ROWS, COLUMNS = 200, 100
EMPTY = torch.zeros(ROWS, COLUMNS)
RAMP = torch.linspace(0.1, 0.9, ROWS * COLUMNS).view(ROWS, COLUMNS)
COUNTS = torch.zeros(ROWS, COLUMNS, dtype=torch.int64)
WEIGHTS = torch.tensor([0.0, 1.0, 2.0, 5.0])
inf = float("inf")


@dataclass(frozen=True)
class Drawn:
    """A call and what its numbers must be like: their quartiles, or mean and deviation; and where they lie."""

    call: Sample
    mean: float | None = None
    deviation: float | None = None
    quartiles: tuple[float, float, float] | None = None
    low: float = -inf
    high: float = inf


def floating(dtype: torch.dtype) -> list[Drawn]:
    empty, ramp, shape = EMPTY.to(dtype), RAMP.to(dtype), [ROWS, COLUMNS]
    return [
        Drawn(row(aten.uniform.default, empty, -2.0, 6.0), 2, 8 / 12**0.5, low=-2, high=6),
        Drawn(row(aten.normal_functional.default, empty, 3.0, 0.5), 3, 0.5),
        Drawn(row(aten.normal_functional.default, empty, 1.0, 0.0), 1, 0),
        Drawn(row(aten.rand_like.default, empty), 0.5, 12**-0.5, low=0, high=1),
        Drawn(row(aten.rand.default, shape, dtype=dtype), 0.5, 12**-0.5, low=0, high=1),
        Drawn(row(aten.randn_like.default, empty), 0, 1),
        Drawn(row(aten.randn.default, shape, dtype=dtype), 0, 1),
        Drawn(row(aten.bernoulli.p, empty, 0.3), 0.3, 0.21**0.5, low=0, high=1),
        Drawn(row(aten.bernoulli.default, ramp), 0.5, 0.5, low=0, high=1),
        Drawn(row(aten.bernoulli.Tensor, empty, RAMP), 0.5, 0.5, low=0, high=1),
        Drawn(row(aten.exponential.default, empty, 2.0), 0.5, 0.5, low=0),
        Drawn(row(aten.cauchy.default, empty, 1.0, 0.5), quartiles=(0.5, 1, 1.5)),
        Drawn(row(aten.log_normal.default, empty, 0.0, 1.0), quartiles=(0.509, 1, 1.963), low=0),
        Drawn(row(aten.geometric.default, empty, 0.25), 4, 12**0.5, low=1),
        Drawn(row(aten.normal.Tensor_Tensor, ramp, ramp), 0.5, 0.6),
        Drawn(row(aten.normal.Tensor_float, empty + 2, 0.5), 2, 0.5),
        Drawn(row(aten.normal.float_Tensor, 1.0, empty + 2), 1, 2),
        Drawn(row(aten.normal.float_float, 1.0, 0.5, shape, dtype=dtype), 1, 0.5),
        Drawn(row(aten.random.to, empty, 5), 2, 2**0.5, low=0, high=4),
    ]


# With parameters of each number's own; PyTorch has some of them in fp32 alone.
PARAMETRIC = [
    Drawn(row(aten._standard_gamma.default, EMPTY + 4), 4, 2, low=0),
    Drawn(row(aten._standard_gamma.default, EMPTY + 0.5), quartiles=(0.0508, 0.2275, 0.6617), low=0),
    Drawn(row(aten._sample_dirichlet.default, EMPTY[:, :4] + 0.5), 0.25, 0.25, low=0, high=1),
    Drawn(row(aten.poisson.default, EMPTY + 3), 3, 3**0.5, low=0),
    Drawn(row(aten.binomial.default, EMPTY + 10, EMPTY + 0.25), 2.5, 1.369, low=0, high=10),
]
INTEGERS = [
    Drawn(row(aten.randint.default, 5, [ROWS, COLUMNS]), 2, 2**0.5, low=0, high=4),
    Drawn(row(aten.randint.low, -3, 2, [ROWS, COLUMNS]), -1, 2**0.5, low=-3, high=1),
    Drawn(row(aten.randint_like.default, COUNTS, 5), 2, 2**0.5, low=0, high=4),
    Drawn(row(aten.randint_like.low_dtype, COUNTS, -3, 2), -1, 2**0.5, low=-3, high=1),
    Drawn(row(aten.random.default, COUNTS.to(torch.uint8)), 127.5, 73.9, low=0, high=255),
    Drawn(row(aten.random.default, COUNTS.bool()), 0.5, 0.5, low=0, high=1),
    Drawn(row(aten.random.default, EMPTY.half()), 1024, 591, low=0, high=2048),
    Drawn(row(aten.geometric.default, COUNTS, 0.25), 4, 12**0.5, low=1),
    Drawn(row(aten.randperm.default, 1000), 499.5, 288.7, low=0, high=999),
    Drawn(row(aten.randperm.generator, 1000, generator=None), 499.5, 288.7, low=0, high=999),
    Drawn(row(aten.multinomial.default, WEIGHTS.expand(ROWS, 4), COLUMNS, True), 2.5, 0.707, low=1, high=3),
    Drawn(row(aten.multinomial.default, WEIGHTS.expand(ROWS * 20, 4), 1), 2.5, 0.707, low=1, high=3),
    Drawn(row(aten.multinomial.default, WEIGHTS, 20000, True), 2.5, 0.707, low=1, high=3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_draws_have_their_distribution(dtype: torch.dtype) -> None:
    draws = floating(dtype) if dtype.is_floating_point else INTEGERS
    draws = [*draws, *PARAMETRIC] if dtype is torch.float32 else draws
    module, inputs = graph_of(*(drawn.call for drawn in draws))
    for drawn, result in zip(draws, run(module, inputs, jax.random.key(0)), strict=True):
        name, values = str(drawn.call.target), as_float32(result)
        assert values.min() >= drawn.low and values.max() <= drawn.high, name
        if drawn.quartiles:
            np.testing.assert_allclose(np.quantile(values, [0.25, 0.5, 0.75]), drawn.quartiles, atol=0.06, err_msg=name)
            continue
        close = max(0.05 * drawn.deviation, 0.01)
        assert values.mean() == pytest.approx(drawn.mean, abs=close), name
        assert values.std() == pytest.approx(drawn.deviation, abs=2 * close), name


def test_every_random_operator_is_tested() -> None:
    random = {target for target in LOWERINGS if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())}
    # In test_lowering.py; attention with dropout is refused.
    elsewhere = {aten.native_dropout.default, aten._scaled_dot_product_flash_attention_for_cpu.default}
    drawn = {each.call.target for each in [*floating(torch.float32), *PARAMETRIC, *INTEGERS]}
    assert random == drawn | elsewhere | {aten.rrelu_with_noise_functional.default}


def test_random_slopes() -> None:
    x = torch.where(EMPTY == 0, -2.0, EMPTY)
    x[:, 0] = 3
    module, inputs = graph_of(row(aten.rrelu_with_noise_functional.default, x, EMPTY, 0.1, 0.3, True))
    result, slopes = (np.asarray(each) for each in run(module, inputs, jax.random.key(0)))
    np.testing.assert_allclose(result, x.numpy() * slopes, rtol=1e-6)
    assert (slopes[:, 0] == 1).all()
    drawn = slopes[:, 1:]
    assert drawn.min() >= 0.1 and drawn.max() <= 0.3
    assert drawn.mean() == pytest.approx(0.2, abs=0.01) and drawn.std() == pytest.approx(0.2 / 12**0.5, abs=0.01)


def test_nothing_is_drawn_twice_where_it_is_not_put_back() -> None:
    module, inputs = graph_of(row(aten.randperm.default, 1000), row(aten.multinomial.default, RAMP[:9], 100))
    permutation, chosen = run(module, inputs, jax.random.key(0))
    np.testing.assert_array_equal(np.sort(permutation), np.arange(1000))
    np.testing.assert_array_equal(np.sort(chosen), np.tile(np.arange(100), (9, 1)))
    assert (np.asarray(chosen)[0] != np.asarray(chosen)[1]).mean() > 0.9


def test_likelier_ones_come_first_without_putting_back() -> None:
    module, inputs = graph_of(row(aten.multinomial.default, WEIGHTS.expand(4000, 4), 3))
    (chosen,) = run(module, inputs, jax.random.key(0))
    # First 5 of 8; second of what is left: 5/6 after a 1, 5/7... summed over what came first.
    first, second = ((np.asarray(chosen)[:, place] == 3).mean() for place in (0, 1))
    assert first == pytest.approx(5 / 8, abs=0.03)
    assert second == pytest.approx(1 / 8 * 5 / 7 + 2 / 8 * 5 / 6, abs=0.03)


def test_rows_draw_the_same_however_they_are_split() -> None:
    def drawn(rows: slice, part: int) -> list[np.ndarray]:
        """What one part of a batch draws; each program draws everything that has rows."""
        whole = [
            row(aten.uniform.default, EMPTY[rows]),
            row(aten.bernoulli.default, RAMP[rows]),
            row(aten.exponential.default, EMPTY[rows]),
            row(aten.normal.Tensor_Tensor, RAMP[rows], RAMP[rows]),
            row(aten.randint_like.default, COUNTS[rows], 1000),
            row(aten.random.to, EMPTY[rows], 1000),
            row(aten.multinomial.default, RAMP[rows], 50, True),
            row(aten.multinomial.default, RAMP[rows], 50),
            row(aten._standard_gamma.default, RAMP[rows]),
            row(aten._sample_dirichlet.default, RAMP[rows]),
            row(aten.poisson.default, RAMP[rows] * 9),
            row(aten.binomial.default, EMPTY[rows] + 9, RAMP[rows]),
        ]
        module, inputs = graph_of(*whole)
        draws = Draws(jax.random.key(3), part=part)
        arrays = [jax.numpy.asarray(x.numpy()) for x in inputs]
        results = jax.jit(lambda *args: Interpreter(draws).run(module, *args))(*arrays)
        return [np.asarray(result) for result in tree_leaves(results)]

    together = drawn(slice(0, 8), 0)
    halves = [drawn(slice(0, 4), 0), drawn(slice(4, 8), 1)]
    for whole, *parts in zip(together, *halves, strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(parts))
        assert (whole[0] != whole[1]).any()


def test_what_has_no_rows_is_drawn_alike_by_all_parts() -> None:
    module, _ = graph_of(row(aten.randperm.default, 100), row(aten.multinomial.default, WEIGHTS, 100, True))
    first, second = (
        Interpreter(Draws(jax.random.key(0), part=part)).run(module, jax.numpy.asarray(WEIGHTS.numpy()))
        for part in (0, 1)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.random_(2, 5),
        lambda x: x.random_(5),
        lambda x: x.bernoulli_(x + 0.5),
        lambda x: x.exponential_(),
        lambda x: x.cauchy_(),
        lambda x: x.log_normal_(),
        lambda x: x.geometric_(0.5),
        lambda x: x.normal_(),
        lambda x: x.uniform_(),
    ],
)
def test_what_is_drawn_into_a_tensor(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    graph = trace(lambda x: write(x * 1), [torch.zeros(50)])
    (drawn,) = GraphFunction(graph)(jax.random.key(0), jax.numpy.zeros(50))
    assert drawn.shape == (50,) and len(np.unique(drawn)) > 1


def test_integers_that_do_not_fit_are_refused() -> None:
    module, inputs = graph_of(row(aten.randint.low, 0, 2**33, [4]))
    with pytest.raises(LoweringError, match="programs carry integers in 32 bits"):
        run(module, inputs, jax.random.key(0))
