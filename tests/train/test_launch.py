"""Which overrides of a resumed run count."""

from __future__ import annotations

from wholestep.train.launch import in_force


def test_a_later_override_takes_the_place_of_earlier_ones() -> None:
    assert in_force(["a=1", "b=2", "a=3"]) == ("b=2", "a=3")
    assert in_force(["a.inner=splash", "a.inner.block_q=128", "a.inner=dot_product"]) == ("a.inner=dot_product",)
    assert in_force(["a.inner=splash", "a.inner.block_q=128", "a.in=1"]) == (
        "a.inner=splash",
        "a.inner.block_q=128",
        "a.in=1",
    )
