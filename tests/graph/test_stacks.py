"""Which layers are alike."""

from __future__ import annotations

from torch import nn

from wholestep.graph.stacks import Stack, find_stacks


class Layer(nn.Module):
    def __init__(self, width: int = 4, window: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.window = window


def stacks_of(*layers: nn.Module) -> tuple[list[Stack], list[str]]:
    stacks, differences = find_stacks(nn.ModuleDict({"layers": nn.ModuleList(layers)}))
    return stacks, [f"{each.layer}: {each.what}" for each in differences]


def test_equal_layers_are_one_stack() -> None:
    assert stacks_of(Layer(), Layer(), Layer()) == ([Stack("layers", 0, ("0", "1", "2"), 1)], [])


def test_a_pattern_is_a_stack_with_its_period() -> None:
    stacks, differences = stacks_of(*[Layer(window=8 if i % 3 else 0) for i in range(9)])
    assert stacks == [Stack("layers", 0, tuple("012345678"), 3)] and not differences
    assert stacks[0].trips == 3 and stacks[0].name_of(1) == "layers.1:9:3"


def test_uniform_runs_and_what_ends_them() -> None:
    stacks, differences = stacks_of(Layer(), Layer(), Layer(window=8), Layer(5, window=8), Layer(5, window=8))
    assert stacks == [Stack("layers", 0, ("0", "1"), 1), Stack("layers", 3, ("3", "4"), 1)]
    assert differences[0] == "layers.2: window is 0 in one and 8 in the other"
    assert "layers.3: " in differences[1] and "(5,)" in differences[1]


def test_a_position_is_no_difference() -> None:
    layers = [Layer(), Layer()]
    for i, layer in enumerate(layers):
        layer.layer_idx = i
    assert len(stacks_of(*layers)[0]) == 1


def test_layers_that_share_parameters_are_no_stack() -> None:
    shared = [Layer(), Layer()]
    shared[1].linear.weight = shared[0].linear.weight
    assert stacks_of(*shared) == ([], ["layers.0: it shares linear.weight with another module"])


def test_modes_and_hooks_differ() -> None:
    assert stacks_of(Layer(), Layer().eval())[1] == ["layers.1: training is True in one and False in the other"]
    hooked = Layer()
    hooked.linear.register_forward_hook(lambda module, args, result: result * 2)
    assert stacks_of(Layer(), hooked)[1][0].startswith("layers.1: linear.forward_hooks is [] in one and")


def test_classes_and_submodules_differ() -> None:
    assert "class is Layer in one and Linear" in stacks_of(Layer(), nn.Linear(4, 4))[1][0] or stacks_of(
        Layer(), nn.Linear(4, 4)
    )[1][0].startswith("layers.1: submodule 'linear'")
    assert "class is ReLU in one and Tanh in the other" in stacks_of(nn.ReLU(), nn.Tanh())[1][0]
