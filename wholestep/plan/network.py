"""Collectives of a compiled program: who takes part, over which axes of the mesh and network, and what travels."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import jax
import numpy as np

from wholestep.plan.hlo import Computation, Instruction, Module
from wholestep.xla.chips import Chip

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "ragged-all-to-all")
# Between slices the runtime (Megascale) does them: the program sends to it and receives from it.
_BETWEEN_SLICES = {
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_REDUCE": "all-reduce",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
_SLICE = 100_000  # what the number of a slice, from 1 on, counts in a device's number


@dataclass(frozen=True)
class Group:
    """The devices that one takes part with in a collective.

    Attributes:
        size: how many.
        axes: of the mesh that they lie along; empty where they are not all along some.
        slices: that they lie in.
        chips: of one slice.
        links: to neighbours in the group that the chip with the fewest has.
        hops: along links from one end of the group to the other.
    """

    size: int
    axes: tuple[str, ...]
    slices: int
    chips: int
    links: int
    hops: int

    @property
    def network(self) -> Literal["ICI", "DCN"]:
        return "DCN" if self.slices > 1 else "ICI"


@dataclass(frozen=True)
class Collective:
    """Attributes:
    operation: one of `COLLECTIVES`.
    group: who takes part.
    size: bytes that one device sends in a ring of its group: of an array of S bytes over n devices S (n-1)/n for an
        all-gather, a reduce-scatter and an all-to-all, twice that for an all-reduce, S for a permutation.
    whole: S.
    links: of a chip that carry it at once: those that the compiler's algorithm uses, where it says so.
    """

    operation: str
    group: Group
    size: int
    whole: int
    links: int


def collective(
    module: Module, computation: Computation, instruction: Instruction, mesh: jax.sharding.Mesh, chip: Chip
) -> Collective | None:
    """What an instruction, or what it calls, sends to other devices; None if nothing."""
    operation = instruction.operation
    if operation == "send":
        operation = _BETWEEN_SLICES.get(instruction.attribute("_xla_megascale_transfer_type") or "", operation)
    if operation not in COLLECTIVES:
        for inside in module.called(instruction):
            for each in inside.instructions:
                if found := collective(module, inside, each, mesh, chip):
                    return _as_run(instruction, found)
        return None
    group = group_of(_members(instruction, mesh), mesh, chip)
    given = sum(array.size for operand in computation.operands(instruction) for array in operand.arrays)
    whole = given * group.size if operation == "all-gather" else given
    share = {"all-reduce": 2.0, "collective-permute": None}.get(operation, 1.0)
    size = whole if share is None else round(share * whole * (group.size - 1) / group.size)
    return Collective(operation, group, size, whole, _links_used(instruction, group))


def _as_run(fusion: Instruction, inside: Collective) -> Collective:
    """Of a fusion of an all-reduce with the slice of it that a device keeps, which runs as a reduce-scatter."""
    links = _links_used(fusion, inside.group)
    if any(name.startswith("all-reduce-scatter") for name in fusion.called):
        return Collective("reduce-scatter", inside.group, inside.size // 2, inside.whole, links)
    return replace(inside, links=min(inside.links, links))


def _links_used(instruction: Instruction, group: Group) -> int:
    """A ring through all chips uses two links of each, one in a single direction only one. On a torus there are several
    rings at once, the compiler's `colors`, each along another dimension first. Where it does not say, all links are
    used."""
    colors = re.search(r"(\w*)Strategy\w*\{colors:(\d+)", instruction.attributes)
    if colors:
        each = 1 if "UniDirection" in colors[1] else 2
        return min(each * int(colors[2]), group.links)
    return min(2, group.links) if '"emitter":"1D' in instruction.attributes else group.links


def group_of(members: np.ndarray, mesh: jax.sharding.Mesh, chip: Chip) -> Group:
    """Args:
    members: positions in the flattened mesh, int [n].
    mesh: of devices with coordinates on their torus.
    chip: theirs.
    """
    places = np.stack(np.unravel_index(members, mesh.devices.shape))
    used = [axis for axis in range(len(places)) if len(set(places[axis])) > 1]
    is_product = math.prod(len(set(places[axis])) for axis in used) == len(members)
    devices = [mesh.devices.flat[i] for i in members]
    slices = {_slice(device) for device in devices}
    first = min(slices)
    inside = {tuple(device.coords) for device in devices if _slice(device) == first}
    whole = {tuple(device.coords) for device in mesh.devices.flat if _slice(device) == first}
    extents = [len({place[dim] for place in inside}) for dim in range(len(next(iter(inside))))]
    bounds = [len({place[dim] for place in whole}) for dim in range(len(extents))]
    links = [_links(extent, bound, chip) for extent, bound in zip(extents, bounds, strict=True)]
    hops = [extent // 2 if link == 2 else extent - 1 for extent, link in zip(extents, links, strict=True)]
    return Group(
        size=len(members),
        axes=tuple(mesh.axis_names[axis] for axis in used) if is_product else (),
        slices=len(slices),
        chips=len(inside),
        links=sum(links),
        hops=sum(hops),
    )


def _links(extent: int, bound: int, chip: Chip) -> int:
    """Along one dimension of the torus, of a chip at the end of a group of this extent: 2 where the group closes to a
    ring. Slices of 3-d tori close in dimensions of a multiple of 4 chips, those of 2-d tori only in full ones of 16."""
    if extent == 1:
        return 0
    closes = bound % 4 == 0 if chip.torus_dimensions == 3 else bound == 16
    return 2 if extent == bound and closes and extent > 2 else 1


def _members(instruction: Instruction, mesh: jax.sharding.Mesh) -> np.ndarray:
    """The positions of the first group. The program is that of a slice, and numbers the devices of one."""
    text = instruction.attributes
    per_slice = mesh.size // len({_slice(device) for device in mesh.devices.flat})
    if instruction.opcode == "send":
        return (_slices(text) - 1) * per_slice
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", text)
    if pairs:
        return np.array([int(pairs[1]), int(pairs[2])])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", text)
    if listed:
        return np.array([int(member) for member in listed[1].split(",")])
    tiled = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if tiled:
        shape, dims, order = ([int(n) for n in part.split(",")] if part else None for part in tiled.groups())
        grid = np.arange(math.prod(dims or ())).reshape(dims)
        return (grid.transpose(order) if order else grid).reshape(shape)[0]
    return np.arange(per_slice)  # no groups: all together


def _slices(attributes: str) -> np.ndarray:
    """Those of the first group: `"{1,2}x{0:7}"`, slices and what they have in common, or devices one by one,
    `{{100000,200000},...}`, or pairs of them, `{{100000->200000},...}`."""
    product = re.search(r'_xla_megascale_target="\{([\d,]+)\}x', attributes)
    if product:
        return np.array([int(number) for number in product[1].split(",")])
    listed = re.search(r"_xla_megascale_target=\{\{([^}]*)\}", attributes)
    assert listed is not None, f"a transfer between no slices: {attributes[:200]}"
    return np.array([int(device) // _SLICE for device in re.findall(r"\d+", listed[1])])


def _slice(device: jax.Device) -> int:
    return getattr(device, "slice_index", 0) or 0
