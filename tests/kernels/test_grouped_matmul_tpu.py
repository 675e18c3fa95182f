"""Matmuls of a mixture of experts: the TPU kernels, interpreted, and the plain path against a loop over experts; and
what the TPU compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from wholestep.kernels import grouped_matmul_tpu as kernels
from wholestep.kernels import ragged_dot as plain
from wholestep.kernels.group_visits import group_visits
from wholestep.kernels.grouped_matmul_tiles import VMEM_BYTES, row_tiles, weight_tiles
from wholestep.parallel import Mesh
from wholestep.xla.memory_use import MemoryUse, compile_for_tpu
from wholestep.xla.topologies import topology_mesh

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}  # of the largest value
SIZES = {  # all of one length, and so of one program
    "every tile has two experts": [10, 30, 12, 12, 6],
    "whole tiles": [16, 32, 0, 0, 16],
    "empty experts": [0, 0, 33, 20, 0],
    "all rows to one": [0, 0, 70, 0, 0],
    "no rows to any": [0, 0, 0, 0, 0],
    "one row": [0, 1, 0, 0, 0],
}
ROWS = 70


@cache
def jitted(function: Callable, **options: object) -> Callable:
    """Compiled in a hurry, since it is small."""
    return jax.jit(partial(function, **options), compiler_options={"xla_backend_optimization_level": 0})


class Case:
    """Random arrays of a pair of projections. The rows past the experts' are NaN."""

    def __init__(self, sizes: list[int], R: int, K: int, N: int, dtype: str, pair: int = 2) -> None:
        random, owned = np.random.default_rng(0), sum(sizes)

        def array(*shape: int) -> np.ndarray:
            return random.normal(size=shape).astype(jnp.dtype(dtype))

        self.sizes, self.dtype, self.shape, self.owned = sizes, dtype, (R, K, N), owned
        self.lhs_RK, self.rhs = array(R, K), tuple(array(len(sizes), N, K) for _ in range(pair))
        self.grads = tuple(array(R, N) for _ in range(pair))
        for rows in (self.lhs_RK, *self.grads):
            rows[owned:] = np.nan

    def experts(self) -> list[slice]:
        ends = np.cumsum(self.sizes)
        return [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    def check(self, functions: object, **options: object) -> None:
        """Each of the three functions of a module against float64 sums of one expert after another."""
        (R, K, N), sizes_E = self.shape, jnp.asarray(self.sizes, jnp.int32)
        to_jax = partial(jax.tree.map, jnp.asarray)
        lhs_RK, rhs, grads = to_jax(self.lhs_RK), to_jax(self.rhs), to_jax(self.grads)
        wide = partial(jax.tree.map, partial(np.asarray, dtype=np.float64))
        lhs64, rhs64, grads64 = wide(self.lhs_RK), wide(self.rhs), wide(self.grads)

        outs, dlhs, dweights = [np.zeros((R, N)) for _ in rhs], np.zeros((R, K)), [np.zeros(w.shape) for w in rhs]
        for expert, rows in enumerate(self.experts()):
            for i, (weight, grad) in enumerate(zip(rhs64, grads64, strict=True)):
                outs[i][rows] = lhs64[rows] @ weight[expert].T
                dlhs[rows] += grad[rows] @ weight[expert]
                dweights[i][expert] = grad[rows].T @ lhs64[rows]

        self.compare(jitted(functions.grouped_matmul, **options)(lhs_RK, rhs, sizes_E), outs)
        self.compare((jitted(functions.grouped_matmul_input_gradient, **options)(grads, rhs, sizes_E),), [dlhs])
        weight_gradient = jitted(functions.grouped_matmul_weight_gradient, num_experts=len(self.sizes), **options)
        gradients = weight_gradient(lhs_RK, grads, sizes_E)
        self.compare(gradients, dweights)
        for gradient in gradients:
            assert not np.asarray(gradient, np.float64)[np.asarray(self.sizes) == 0].any()

    def compare(self, actual: tuple[jax.Array, ...], expected: list[np.ndarray]) -> None:
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == self.dtype and a.shape == e.shape
            scale = max(np.abs(e).max(), 1.0) if e.size else 1.0
            np.testing.assert_allclose(np.asarray(a, np.float64), e, rtol=0, atol=TOLERANCE[self.dtype] * scale)
            if a.shape[0] == self.shape[0] and a.ndim == 2:
                assert not np.asarray(a, np.float64)[self.owned :].any()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kernels_are_as_a_loop_over_experts(sizes: list[int], dtype: str) -> None:
    Case(sizes, ROWS, 130, 40, dtype).check(kernels, interpret=True, tiling=(16, 128, 128))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_plain_path_is_as_a_loop_over_experts(sizes: list[int], dtype: str) -> None:
    Case(sizes, ROWS, 130, 40, dtype).check(plain)


def test_the_plain_path_has_tiles_of_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_TILE", 16)
    Case([0, 33, 0, 20, 8], ROWS, 24, 40, "float32").check(plain)


@pytest.mark.parametrize(
    ("shape", "tiling", "pair"),
    [
        ((ROWS, 300, 260), (16, 128, 128), 2),  # tiles that divide nothing
        ((ROWS, 256, 384), (48, 128, 256), 1),
        ((600, 64, 32), (256, 128, 128), 2),  # tiles of several blocks of rows
        ((600, 64, 32), None, 1),
        ((1, 8, 8), None, 2),
        ((0, 8, 8), None, 2),
    ],
)
def test_kernels_with_any_shapes_and_tiles(
    shape: tuple[int, int, int], tiling: tuple[int, int, int] | None, pair: int
) -> None:
    sizes = [shape[0] // 2, 0, shape[0] // 3]
    Case(sizes, *shape, "float32", pair).check(kernels, interpret=True, tiling=tiling)


GROUPS = st.lists(st.integers(0, 14), min_size=5, max_size=5)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(sizes=GROUPS, shape=st.sampled_from([(70, 130, 40), (81, 20, 129)]))
def test_kernels_with_any_groups(sizes: list[int], shape: tuple[int, int, int]) -> None:
    Case(sizes, *shape, "float32").check(kernels, interpret=True, tiling=(16, 128, 128))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(sizes=GROUPS, rows=st.sampled_from([70, 75]), tile=st.sampled_from([1, 4, 7]))
def test_visits_cover_each_row_of_an_expert_once(sizes: list[int], rows: int, tile: int) -> None:
    owner, tiles = np.repeat(np.arange(len(sizes)), sizes), -(-rows // tile)
    for every, all_of_them in (("tile", range(tiles)), ("expert", range(len(sizes)))):
        visits = jitted(group_visits, rows=rows, tile=tile, every=every)(jnp.asarray(sizes, jnp.int32))
        visits = jax.tree.map(np.asarray, visits)
        assert set(getattr(visits, every)) == set(all_of_them)
        for order in (visits.expert, visits.tile, visits.read):
            assert (np.diff(order) >= 0).all()  # so that equal ones follow one another
        seen = []
        for expert, at, read, start, end in zip(*visits, strict=True):
            assert 0 <= read <= at < tiles and 0 <= start <= end <= tile
            assert read == at or start == end
            seen += range(at * tile + start, at * tile + end)
            assert (owner[at * tile + start : at * tile + end] == expert).all()
        assert seen == list(range(sum(sizes)))


def test_other_groups_do_not_trace_again() -> None:
    traces = 0

    @jax.jit
    def matmul(lhs_RK: jax.Array, rhs_ENK: jax.Array, sizes_E: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return kernels.grouped_matmul(lhs_RK, (rhs_ENK,), sizes_E, interpret=True)[0]

    for sizes in ([3, 5], [0, 8], [1, 0]):
        matmul(jnp.ones((8, 4)), jnp.ones((2, 4, 4)), jnp.asarray(sizes, jnp.int32))
    assert traces == 1


def test_what_does_not_fit_is_said() -> None:
    lhs_RK, rhs_ENK, sizes_E = jnp.ones((8, 4)), jnp.ones((2, 6, 4)), jnp.zeros(2, jnp.int32)
    with pytest.raises(ValueError, match=r"rhs of float32\[2, 5, 4\]: expected float32\[2, 6, 4\]"):
        kernels.grouped_matmul(lhs_RK, (rhs_ENK, jnp.ones((2, 5, 4))), sizes_E)
    with pytest.raises(ValueError, match=r"rhs of bfloat16\[2, 6, 4\]: expected float32"):
        kernels.grouped_matmul(lhs_RK, (rhs_ENK.astype(jnp.bfloat16),), sizes_E)
    with pytest.raises(ValueError, match=r"group sizes of shape \(2,\) for 3 experts"):
        kernels.grouped_matmul(lhs_RK, (jnp.ones((3, 6, 4)),), sizes_E)
    with pytest.raises(ValueError, match=r"grads of float32\[7, 6\]: expected float32\[8, 6\]"):
        kernels.grouped_matmul_weight_gradient(lhs_RK, (jnp.ones((7, 6)),), sizes_E, 2)
    with pytest.raises(ValueError, match=r"group sizes of shape \(2,\) for 4 experts"):
        kernels.grouped_matmul_weight_gradient(lhs_RK, (jnp.ones((8, 6)),), sizes_E, 4)


@pytest.mark.parametrize(("K", "N"), [(2048, 768), (4096, 1536), (7168, 2048), (16384, 65536), (100, 100)])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_chosen_tiles_fit_fast_memory(K: int, N: int, itemsize: int) -> None:
    for rows in (1, 4096, 2**19):
        r, k, n = row_tiles(rows, K, N, lhs=1, rhs=2, outputs=2, itemsize=itemsize)
        assert 2 * itemsize * (r * k + 2 * k * n + 2 * r * n) < VMEM_BYTES
        r, k, n = weight_tiles(rows, K, N, 128, grads=2, itemsize=itemsize)
        assert 2 * itemsize * (r * k + 2 * r * n + 2 * k * n) + 8 * k * n < VMEM_BYTES


# Qwen3-30B-A3B: 8 of 128 experts for each of 8192 tokens.
R, K, N, E = 8192 * 8, 2048, 768, 128
LAYER = {
    "forward": lambda lhs, pair, grads, sizes: kernels.grouped_matmul(lhs, pair, sizes),
    "input gradient": lambda lhs, pair, grads, sizes: kernels.grouped_matmul_input_gradient(grads, pair, sizes),
    "weight gradient": lambda lhs, pair, grads, sizes: kernels.grouped_matmul_weight_gradient(lhs, grads, sizes, E),
}


def compiled_layer(topology: str, devices: int, layer: Callable) -> jax.stages.Compiled:
    """The whole layer on each device."""
    mesh, everywhere = topology_mesh(topology, Mesh(fsdp=devices)), PartitionSpec()

    def array(*shape: int, dtype: jnp.dtype = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, everywhere))

    pair, grads, sizes = (array(E, N, K),) * 2, (array(R, N),) * 2, array(E, dtype=jnp.int32)
    mapped = jax.shard_map(layer, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    return compile_for_tpu(jax.jit(mapped).lower(array(R, K), pair, grads, sizes))


@pytest.mark.parametrize("which", LAYER)
@pytest.mark.parametrize(("topology", "devices"), [("v6e:2x2", 4), ("tpu7x:2x2x1", 8)])
def test_a_real_layer_compiles_for_a_tpu_with_nothing_in_between(topology: str, devices: int, which: str) -> None:
    use = MemoryUse.of(compiled_layer(topology, devices, LAYER[which]))
    assert use.temporaries < 2**20 < use.outputs


def test_the_plain_weight_gradient_does_not_multiply_rows_with_other_experts() -> None:
    def gradient(lhs: jax.Array, pair: object, grads: tuple[jax.Array, ...], sizes: jax.Array):
        return plain.grouped_matmul_weight_gradient(lhs, grads, sizes, E)

    compiled = compiled_layer("v6e:2x2", 4, gradient)
    visits = R // plain._TILE + E
    assert compiled.cost_analysis()["flops"] < 1.1 * 2 * 2 * visits * plain._TILE * K * N
