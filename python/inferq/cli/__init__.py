"""The command line: run a trace or a scenario, compare, plan, sweep, gate, look, check.

A command is the file of its name, which is loaded when the command is called. Tables go to standard output,
progress and errors to standard error. A user's error is one line and exit status 2, a run that cannot go on
is one line and 1, Ctrl-C is 130.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from inferq._version import __version__, commit
from inferq.cli import gathered
from inferq.display.text import visible
from inferq.elsewhere import option_of
from inferq.errors import ConfigError, SimulationError, TraceError
from inferq.inputs import is_panic

__all__ = ["app"]

_TRACEBACK = "INFERQ_TRACEBACK"
"""Set in the environment, an error that no command foresees is shown whole, for a report of it."""

_USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What a wrong command line is told with, wherever this version of typer has it from."""

COMMANDS = (
    *(
        "replay",
        "simulate",
        "theory",
        "paper",
        "compare",
        "capacity",
        "plan",
        "sweep",
        "gate",
        "validate",
        "report",
    ),
    *("serve", "calibrate", "trace", "timing", "list", "init"),
)


class Files(Mapping[str, Any]):
    """The commands by name: of a file the function of its name, or a group of further commands."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        command = getattr(import_module(f"inferq.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            group: Any = get_command(command)
            for one in group.commands.values():
                one.params.append(_as_json())
            return group
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command()(command)
        made = get_command(alone)
        made.params.append(_as_json())
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """Commands whose errors are one line on standard error."""

    def __init__(self, **attributes: Any) -> None:
        """A group of the commands in the files beside this one."""
        super().__init__(**attributes)
        self.commands = cast("Any", Files())  # never written to

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by the first lines of their files, none of which is loaded for that."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(name)) for name in COMMANDS])

    def invoke(self, ctx: Any) -> Any:
        """Run a command and turn what it raises into an exit status."""
        try:
            done = super().invoke(ctx)
            gathered.end()
            return done
        except typer.Exit:
            gathered.end()
            raise
        except _USAGE as error:
            _hint(error)
            raise
        except (ConfigError, TraceError) as error:
            _fail(str(error), 2)
        except SimulationError as error:
            _fail(str(error), 1)
        except BrokenPipeError:
            raise
        except OSError as error:
            named = error.filename and error.strerror
            _fail(f"{error.filename}: {error.strerror}" if named else str(error), 2)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except (typer.Abort, SystemExit):
            raise
        except MemoryError:
            _fail("this takes more memory than there is", 2)
        except BaseException as error:
            if os.environ.get(_TRACEBACK) or not (isinstance(error, Exception) or is_panic(error)):
                raise
            said = str(error).strip().partition("\n")[0]
            _fail(f"{type(error).__name__}: {said or 'no more is known'} ({_TRACEBACK}=1 shows where)", 2)


def _first_line(command: str) -> str:
    """What the file of a command says of it behind its name."""
    source = (Path(__file__).parent / f"{command}.py").read_text(encoding="utf-8")
    line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].partition(": ")[2]
    return f"{line[:1].upper()}{line[1:]}"


def _as_json() -> Any:
    """The option that every command has."""
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def bearer(
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    ) -> None:
        """A command that has nothing else."""

    option = get_command(alone).params[0]
    option.expose_value = False
    option.callback = lambda _context, _option, asked: gathered.begin() if asked else None
    return option


def _hint(error: Any) -> None:
    """Say what an option of another program is called here."""
    asked = getattr(error, "option_name", None) or ""
    ours = option_of(asked)
    if type(error).__name__ == "MissingParameter" and getattr(error.param, "help", None):
        error.message = error.param.help
    elif asked == "--slo":
        error.message = (
            "No such option: --slo; objectives are for inferq capacity, plan, report, compare and sweep."
        )
        error.possibilities = None
    elif ours is not None:
        error.message = f"No such option: {error.option_name}; here it is {ours}."
        error.possibilities = None


def _version(asked: bool) -> None:
    if asked:
        built_from = commit()
        typer.echo(f"inferq {__version__}" + ("" if built_from is None else f" ({built_from})"))
        raise typer.Exit


def _fail(message: str, status: int) -> None:
    typer.echo(f"inferq: {visible(' '.join(message.split()))}", err=True)
    raise typer.Exit(status)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version and the commit."),
    ] = False,
) -> None:
    """Simulate LLM inference serving, bit for bit the same on every machine."""
