"""`wholestep`: the commands, and how their errors end."""

from __future__ import annotations

import json
import sys

import click

from wholestep import __version__
from wholestep.cli.chips import chips
from wholestep.cli.export import export
from wholestep.cli.flags import flags
from wholestep.cli.kernels import kernels
from wholestep.cli.plan import plan
from wholestep.cli.recipes import recipes
from wholestep.cli.train import train
from wholestep.cli.tune import tune
from wholestep.errors import WholestepError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def wholestep() -> None:
    """Train PyTorch models on TPU with the whole training step as one XLA program."""


for command in (train, plan, tune, recipes, kernels, chips, flags, export):
    wholestep.add_command(command)


def main() -> None:
    """Run the command line. What the user can mend ends with one line on standard error and exit code 2 (with
    `--json`, as an object on standard output)."""
    as_json = "--json" in sys.argv
    try:
        status = wholestep(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _fail(error.format_message(), as_json)
    except WholestepError as error:
        _fail(str(error), as_json)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), as_json)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": message}))
    else:
        click.echo(f"error: {message}", err=True)
    sys.exit(2)
