"""A module's initialization as one graph for each of its tensors."""

from __future__ import annotations

import pytest
import torch
from graph.small_step import HIDDEN, WIDTH, Stack
from support import tiny_config
from torch import nn

from wholestep.errors import GraphError
from wholestep.graph.initialize import Initializer, capture_initializers

RANDOM = {torch.ops.aten.uniform.default, torch.ops.aten.normal_functional.default}


def targets(initializer: Initializer) -> list[object]:
    return [node.target for node in initializer.module.graph.nodes if node.op == "call_function"]


def decoder(tied: bool = False) -> nn.Module:
    with torch.device("meta"):
        return tiny_config(tied).build()


def test_every_parameter_and_buffer_has_one_of_its_own_shape() -> None:
    module = decoder()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    initializers = capture_initializers(module)
    assert set(initializers) == set(tensors)
    assert len({initializer.index for initializer in initializers.values()}) == len(tensors)
    for name, initializer in initializers.items():
        assert not initializer.module.graph.find_nodes(op="placeholder")
        (value,) = initializer.module()
        assert (value.shape, value.dtype) == (tensors[name].shape, tensors[name].dtype), name


def test_tied_weights_are_initialized_once() -> None:
    assert "lm_head.weight" not in capture_initializers(decoder(tied=True))


def test_a_graph_holds_what_its_tensor_needs_and_no_more() -> None:
    initializers = capture_initializers(decoder())
    for name, initializer in initializers.items():
        draws = [target for target in targets(initializer) if target in RANDOM]
        assert len(draws) == (0 if "norm" in name or name.startswith("rotary") else 1), name


def test_equal_layers_have_equal_fingerprints_and_other_draws() -> None:
    initializers = capture_initializers(decoder())
    first = {name: each for name, each in initializers.items() if name.startswith("layers.0.")}
    for name, initializer in first.items():
        other = initializers[name.replace("layers.0.", "layers.1.")]
        assert initializer.fingerprint == other.fingerprint
        assert initializer.index != other.index
    assert (
        first["layers.0.attention.q_proj.weight"].fingerprint != first["layers.0.attention.k_proj.weight"].fingerprint
    )


def test_a_module_without_init_weights_uses_reset_parameters() -> None:
    initializers = capture_initializers(Stack())
    for name, shape in {"first.weight": (HIDDEN, WIDTH), "first.bias": (HIDDEN,), "last.weight": (3, HIDDEN)}.items():
        (value,) = initializers[name].module()
        assert value.shape == shape
        assert 0 < value.abs().max() <= 1 / shape[-1] ** 0.5 if "weight" in name else True
    torch.testing.assert_close(initializers["gain.weight"].module(), [torch.ones(HIDDEN)])


def test_the_module_itself_is_not_touched() -> None:
    module = Stack()
    before = [parameter.clone() for parameter in module.parameters()]
    capture_initializers(module)
    for parameter, value in zip(module.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


def test_what_nothing_initializes_is_zero() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.full((2, 3), 7.0))
    torch.testing.assert_close(capture_initializers(module)["weight"].module(), [torch.zeros(2, 3)])


class Orthogonal(nn.Module):
    """Two matrices from one draw: neither can be made without the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.empty(4)), nn.Parameter(torch.empty(4))

    @torch.no_grad()
    def init_weights(self) -> None:
        draw = torch.empty_like(self.a).uniform_()
        self.a.copy_(draw)
        self.b.copy_(1 - draw)


def test_a_shared_draw_is_an_error_that_names_both() -> None:
    with pytest.raises(GraphError, match="a and b are initialized from one random draw"):
        capture_initializers(Orthogonal())
