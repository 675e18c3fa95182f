"""Compiler flags by name and in sets: from what a recipe says to what the compiler is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import jax

from wholestep.errors import ConfigError, nearest
from wholestep.xla.chips import Chip
from wholestep.xla.flag_sets import SETS, FlagSet
from wholestep.xla.known_flags import FLAGS, INTEGER, OFF


def compiler_options(settings: Sequence[str], chip: Chip | None) -> dict[str, str]:
    """What to compile a program for `chip` with.

    Args:
        settings: names of sets (`SETS`) and `flag=value`, in order; a later one wins. A flag that is not known here
            and begins with `xla_` or `megascale_` is left to the compiler to judge.
        chip: None for a CPU, which takes none of these flags.

    Raises:
        ConfigError: a set or flag is unknown or not for this chip, a value is none that the flag takes, or a flag lacks
            another that it needs or goes with one that it conflicts with.
    """
    if chip is None:
        return {}
    options: dict[str, str] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if equals:
            options[name] = _checked(name, value, chip)
        else:
            options |= _set(name, chip).values
    _check_together(options)
    return options


def compile_with(lowered: jax.stages.Lowered, options: Mapping[str, str | bool]) -> jax.stages.Compiled:
    """Compile with these flags.

    Raises:
        ConfigError: the compiler does not know a flag, or does not take its value.
    """
    try:
        return lowered.compile(compiler_options=dict(options) or None)
    except jax.errors.JaxRuntimeError as error:
        first = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        if unknown := re.match(r"No such compile option: '(\w+)'", first):
            raise ConfigError(f"flags: the compiler knows no {unknown[1]!r}{nearest(unknown[1], FLAGS)}") from error
        if first.startswith("Failed to parse") and any(name in first for name in options):
            raise ConfigError(f"flags: the compiler says: {first}") from error
        raise


def _set(name: str, chip: Chip) -> FlagSet:
    if name in FLAGS:
        raise ConfigError(f"flags: {name} needs a value: {name}={_example(name)}")
    if name not in SETS:
        raise ConfigError(
            f"flags: no set {name!r}{nearest(name, SETS)}; sets are {', '.join(SETS)}, or write flag=value"
        )
    if chip.name not in SETS[name].chips:
        raise ConfigError(f"flags: {name} is for {', '.join(SETS[name].chips)}, not for {chip.name}")
    return SETS[name]


def _checked(name: str, value: str, chip: Chip) -> str:
    """The value as the compiler reads it."""
    if name in SETS:
        raise ConfigError(f"flags: {name} is a set of flags: name it without a value")
    if name not in FLAGS:
        if name.startswith(("xla_", "megascale_")):
            return value
        raise ConfigError(f"flags: no flag {name!r}{nearest(name, FLAGS)}; names begin with xla_ or megascale_")
    flag = FLAGS[name]
    if chip.name not in flag.chips:
        raise ConfigError(f"flags: {name} is for {', '.join(flag.chips)}, not for {chip.name}")
    if isinstance(flag.takes, str):
        if not re.fullmatch(r"-?\d+", value):
            raise ConfigError(f"flags: {name} takes {INTEGER}, not {value!r}")
        return value
    spelled = {choice.lower(): choice for choice in flag.takes}
    if value.lower() not in spelled:
        raise ConfigError(f"flags: {name} takes {', '.join(flag.takes)}, not {value!r}")
    return spelled[value.lower()]


def _check_together(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name not in FLAGS or value in OFF:
            continue
        for other, needed in FLAGS[name].needs.items():
            if options.get(other) != needed:
                raise ConfigError(f"flags: {name} needs {other}={needed}")
        for other, excluded in FLAGS[name].conflicts.items():
            if options.get(other) == excluded:
                raise ConfigError(f"flags: {name}={value} conflicts with {other}={excluded}; give one of them alone")


def _example(name: str) -> str:
    takes = FLAGS[name].takes
    return "NUMBER" if isinstance(takes, str) else "|".join(takes)
