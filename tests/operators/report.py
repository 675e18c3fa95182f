"""`python -m operators.report`, from `make test-operators`: PyTorch's operator database as docs/operators.md."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from operators.apart import APART, PARTLY
from operators.judge import DTYPES, Verdict, judge
from torch.testing._internal.common_methods_invocations import op_db

from wholestep.graph.decompositions import decompositions
from wholestep.graph.passes import identities
from wholestep.xla.devices import configure_devices
from wholestep.xla.lowering import LOWERINGS

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"

# Operators of the core set that no program has.
NO_PROGRAM_HAS = {
    "aten._local_scalar_dense.default": "reads a value of a tensor into Python",
    "aten.nonzero.default": "its result's shape depends on values",
    "aten.resize_.default": "tracing makes it `aten.resize.default`, which is lowered",
    "aten.sym_numel.default": "shapes are Python numbers when a step is traced",
    "aten.sym_size.int": "shapes are Python numbers when a step is traced",
    "aten.sym_storage_offset.default": "shapes are Python numbers when a step is traced",
    "aten.sym_stride.int": "shapes are Python numbers when a step is traced",
    "aten.upsample_bilinear2d.vec": "PyTorch makes it its default overload",
    "aten.upsample_nearest2d.vec": "PyTorch makes it its default overload",
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--part", type=float, default=1.0, help="share of the samples")
    part = arguments.parse_args().part
    names = sorted(entry.full_name for entry in op_db)
    verdicts = {}
    # New processes now and then: each keeps the programs that it compiled.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), configure_devices, maxtasksperchild=40) as pool:
        for name, verdict in pool.imap_unordered(partial(_verdict, part=part), names, chunksize=1):
            verdicts[name] = verdict
            print(f"{len(verdicts)}/{len(names)} {name}: {_summary(verdict)}", flush=True)
    PAGE.write_text(page({name: verdicts[name] for name in names}, part))


def page(verdicts: Mapping[str, Verdict], part: float) -> str:
    """The report, in Markdown."""
    wrong = [name for name, verdict in verdicts.items() if verdict.wrong]
    rest = [name for name, verdict in verdicts.items() if not verdict.wrong and (verdict.refused or not verdict.passed)]
    apart = [name for name in rest if name in APART]
    refused = [name for name in rest if name not in APART]
    passing = [name for name, verdict in verdicts.items() if name not in {*wrong, *rest}]
    samples = sum(verdict.passed for verdict in verdicts.values())
    dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    command = "make test-operators" if part == 1 else f"PYTHONPATH=tests python -m operators.report --part {part:g}"
    share = "All samples" if part == 1 else f"**A part of the samples ({part:g})**"
    lines = [
        "# Operators",
        "",
        f"{share} of PyTorch {torch.__version__.partition('+')[0]}'s own operator database (`op_db`), in {dtypes}: "
        "value, shape and dtype, and the gradients of float32. A sample agrees with PyTorch on the CPU, or an error "
        "says what is missing. To agree is to be as near to PyTorch as the tests' tolerance, or nearly as near to "
        "PyTorch's result in float64 as PyTorch's own is. What draws random numbers is compared in shape and dtype "
        "here, and in distribution in the tests.",
        "",
        "```sh",
        f"{command}   # makes this page",
        "```",
        "",
        f"| {len(verdicts)} entries | |",
        "|---|---|",
        f"| all samples agree | {len(passing)} |",
        f"| some samples refused | {len(refused)} |",
        f"| not applicable | {len(apart)} |",
        f"| some samples wrong | {len(wrong)} |",
        "",
        f"{samples} samples agree.",
        "",
        *_core(),
        *_table("Wrong", wrong, verdicts),
        *_table("Refused", refused, verdicts),
        *_table("Not applicable", apart, verdicts),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _verdict(name: str, part: float) -> tuple[str, Verdict]:
    warnings.simplefilter("ignore")
    entry = next(entry for entry in op_db if entry.full_name == name)
    try:
        return name, judge(entry, part)
    except Exception as error:
        return name, Verdict(wrong={"samples": f"{type(error).__name__}: {error}"})


def _summary(verdict: Verdict) -> str:
    counts = {"agree": verdict.passed, "refused": len(verdict.refused), "wrong": len(verdict.wrong)}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing to compare"


def _core() -> list[str]:
    """How much of PyTorch's core operator set there is."""
    # Of the dispatcher: `torch.ops.aten` lists those that were used before.
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    overloads = [_overload(name) for name in names]
    core = [op for op in overloads if torch.Tag.core in op.tags and "out" not in op._overloadname]
    known = {*LOWERINGS, *decompositions(), *identities.ALWAYS}
    applicable = [op for op in core if str(op) not in NO_PROGRAM_HAS]
    missing = [str(op) for op in applicable if op not in known]
    lines = [
        "## The core set",
        "",
        f"{len(applicable) - len(missing)} of the {len(applicable)} operators that PyTorch tags as core "
        "(`torch.Tag.core`; without those that write into `out`) have a lowering or a decomposition. No program has: "
        + ", ".join(f"`{op}` ({NO_PROGRAM_HAS[str(op)]})" for op in core if str(op) in NO_PROGRAM_HAS)
        + ".",
        "",
    ]
    return [*lines, "Missing: " + ", ".join(f"`{name}`" for name in missing) + ".", ""] if missing else lines


def _overload(name: str) -> torch._ops.OpOverload:
    """The operator of a name such as `aten::add.Tensor`."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _table(title: str, names: list[str], verdicts: Mapping[str, Verdict]) -> list[str]:
    if not names:
        return []
    rows = [f"| `{name}` | {_summary(verdicts[name])} | {_reason(name, verdicts[name])} |" for name in names]
    return [f"## {title}", "", "| entry | samples | why |", "|---|---|---|", *rows, ""]


def _reason(name: str, verdict: Verdict) -> str:
    known = APART.get(name, PARTLY.get(name))
    if known and not verdict.wrong:
        return known
    reasons = {**verdict.refused, **verdict.wrong} if not verdict.wrong else verdict.wrong
    first = next(iter(reasons.values()), "PyTorch takes none of the samples")
    # Where it was traced from is the judge.
    text = re.sub(r"^judge\.py:\d+: |: in the root module", "", " ".join(first.split()))
    return text[:300].replace("|", "\\|")


if __name__ == "__main__":
    main()
