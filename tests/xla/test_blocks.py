"""What is written into an array that the same program reads elsewhere, by another shape: against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

aten = torch.ops.aten

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda a: aten.slice_scatter(a.view(2, 4), a[:6].view(2, 3), 1, 1, 4),
    "two slices": lambda a: aten.slice_scatter(
        aten.slice_scatter(a.view(2, 4), a[:6].view(2, 3), 1, 1, 4), a[:2].view(2, 1), 1, 0, 1
    ),
    "rows": lambda a: aten.slice_scatter(a.view(4, 2), a[:6].view(3, 2), 0, 1, 4),
    "steps": lambda a: aten.slice_scatter(a.view(2, 4), a[:4].view(2, 2), 1, 0, 4, 2),
    "odd steps": lambda a: aten.slice_scatter(a.view(2, 4), a[:4].view(2, 2), 1, 1, 4, 2),
    "negative bounds": lambda a: aten.slice_scatter(a.view(2, 4), a[:4].view(2, 2), 1, -3, -1),
    "nothing": lambda a: aten.slice_scatter(a.view(2, 4), a[:0].view(2, 0), 1, 2, 2),
    "all": lambda a: aten.slice_scatter(a.view(2, 4), a.flip(0).view(2, 4), 1),
    "select": lambda a: aten.select_scatter(a.view(2, 4), a[1:5], 0, -1),
    "column": lambda a: aten.select_scatter(a.view(2, 4), a[1:3], 1, 2),
    "one index": lambda a: aten.index_put(a.view(2, 4), [torch.tensor([1])], a[1:5].view(1, 4)),
    "one negative index": lambda a: aten.index_put(a.view(2, 4), [torch.tensor([-1])], a[1:5].view(1, 4)),
    "one column": lambda a: aten.index_put(a.view(2, 4), [None, torch.tensor([2])], a[1:3].view(2, 1)),
    "one element": lambda a: aten.index_put(a.view(2, 4), [torch.tensor([1]), torch.tensor([2])], a[:1]),
    "one index added": lambda a: aten.index_put(a.view(2, 4), [torch.tensor([1])], a[1:5].view(1, 4), True),
    "a number": lambda a: aten.index_put(a.view(2, 4), [torch.tensor([1])], a[0]),
    "two indices": lambda a: aten.index_put(a.view(4, 2), [torch.tensor([2, 3])], a[2:6].view(2, 2)),
    "index_add": lambda a: a.view(2, 4).index_add(0, torch.tensor([1]), a[1:5].view(1, 4)),
    "index_copy": lambda a: a.view(2, 4).index_copy(0, torch.tensor([1]), a[1:5].view(1, 4)),
    "greatest": lambda a: a.view(2, 4).index_reduce(0, torch.tensor([1]), a[1:5].view(1, 4) + 2, "amax"),
    "shifted tokens": lambda a: (h := a.view(2, 4).clone()).copy_(torch.cat([h[:, :1], h[:, :-1]], 1)),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks(name: str, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> Tensor:
        return PROGRAMS[name](x + 3)

    x = torch.arange(8).to(dtype)
    assert torch.equal(torch.compile(program, backend="wholestep")(x), program(x))
