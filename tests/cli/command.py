"""The command line, run in this process."""

from __future__ import annotations

import sys

import pytest

from wholestep.cli.main import main


def run_cli(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of `wholestep WORDS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["wholestep", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def as_words(overrides: dict[str, object]) -> list[str]:
    return [word for path, value in overrides.items() for word in ("--set", f"{path}={value}")]
