"""From a command line's words to a finished run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

from rich.console import Console

from wholestep.checkpoint.huggingface import Reader
from wholestep.data.cache import cache_root
from wholestep.errors import CheckpointError, ConfigError
from wholestep.parallel import Mesh
from wholestep.train.description import Description
from wholestep.train.display import Display
from wholestep.train.run_directory import RunDirectory, write_json
from wholestep.train.state import initial_state, state_from_huggingface
from wholestep.train.summary import draw_loss_curve, summarize
from wholestep.train.trainer import Trainer
from wholestep.xla.compile_cache import count_compiles, enable_compile_cache

DEFAULT_RECIPE = "llama3_debug"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `wholestep train` takes; None, empty or false where it was not given."""

    recipe: str | None = None
    overrides: Sequence[str] = ()
    steps: int | None = None
    mesh: str | None = None
    data: str | None = None
    tokenizer: str | None = None
    init: Path | None = None
    out: Path | None = None
    resume: bool = False
    profile: bool = False


def launch(options: Options, console: Console) -> dict[str, Any]:
    """Train as `options` say, showing progress on `console`.

    Returns:
        The run's summary, as in its `summary.json`.

    Raises:
        WholestepError: what is wrong with the options, before anything compiles; or how the run failed.
    """
    description, run = _resumed_run(options) if options.resume else _new_run(options)
    recipe = description.build()
    enable_compile_cache(cache_root() / "xla")
    with Display(console) as display, count_compiles() as counts:
        trainer = Trainer(recipe, run, display)
        make_state = initial_state
        if options.init is not None:
            make_state = partial(state_from_huggingface, directory=options.init, family=description.family)
        outcome = trainer.train(
            resume=options.resume,
            make_state=make_state,
            profile=options.profile,
            on_start=lambda: description.write(run.recipe),
        )
    if outcome.last is None and run.summary.exists():
        return json.loads(run.summary.read_text())  # there was nothing left to do
    summary = {
        **summarize(outcome, description.recipe, recipe.model.num_parameters(), run),
        "compiled_programs": counts.compiled,
        "cached_programs": counts.hits,
    }
    write_json(run.summary, summary)
    draw_loss_curve(run.metrics, run.loss_curve)
    return summary


def _new_run(options: Options) -> tuple[Description, RunDirectory]:
    name = options.recipe or DEFAULT_RECIPE
    run = RunDirectory(options.out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if run.has_checkpoint():
        raise ConfigError(f"{run.path} holds a run already: --resume continues it; another --out starts anew")
    description = Description(recipe=name, overrides=_overrides(options))
    if options.init is not None:
        description = replace(description, huggingface=Reader(options.init).config)
        if options.tokenizer is None and (options.init / "tokenizer.json").exists():
            tokenizer = f"data.tokenizer={options.init.resolve()}"
            description = replace(description, overrides=(tokenizer, *description.overrides))
    return description, run


def _resumed_run(options: Options) -> tuple[Description, RunDirectory]:
    if options.out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    if options.init is not None:
        raise ConfigError("--init starts a run and --resume continues one: give one of them")
    run = RunDirectory(options.out)
    saved = Description.read(run.recipe)
    if not run.has_checkpoint():
        raise CheckpointError(f"{run.path} has no checkpoint to resume from: start it anew, without --resume")
    if options.recipe not in (None, saved.recipe):
        raise CheckpointError(f"{run.path} is a run of {saved.recipe}, not of {options.recipe}")
    return replace(saved, overrides=in_force((*saved.overrides, *_overrides(options)))), run


def in_force(overrides: Sequence[str]) -> tuple[str, ...]:
    """Of overrides in order, those that count: of two for one path the later, where it stands; and what was set in a
    node ends where another override puts a node in its place."""
    latest: dict[str, str] = {}
    for override in overrides:
        path = override.partition("=")[0]
        latest = {old: text for old, text in latest.items() if old != path and not old.startswith(f"{path}.")}
        latest[path] = override
    return tuple(latest.values())


def _overrides(options: Options) -> tuple[str, ...]:
    """Every option that changes the recipe, as `path=value`."""
    changes = list(options.overrides)
    if options.steps is not None:
        changes.append(f"steps={options.steps}")
    if options.mesh is not None:
        changes += [f"mesh.{axis}={size}" for axis, size in Mesh.parse(options.mesh).axes.items()]
    if options.data is not None:
        changes.append(f"data.source={_absolute(options.data)}")
    if options.tokenizer is not None:
        changes.append(f"data.tokenizer={_absolute(options.tokenizer)}")
    return tuple(changes)


def _absolute(name: str) -> str:
    """A local path or glob so that it means the same from every folder; any other name as it is."""
    here = Path(name).expanduser()
    is_local = here.exists() or glob(str(here))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    return str(here.absolute()) if is_local else name
