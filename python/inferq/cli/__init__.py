"""The command line.

Each command is the module of its name, which is imported when the command is called. Tables go to standard
output, progress and errors to standard error. Exit status: 2 for wrong input, 1 for a failed run, each with
one line; 130 for Ctrl-C.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from inferq._lazy import missing_extra
from inferq._version import __version__, commit
from inferq.cli import gathered
from inferq.display.text import visible
from inferq.elsewhere import option_of
from inferq.errors import ConfigError, SimulationError, TraceError
from inferq.inputs import is_panic

__all__ = ["app"]

_TRACEBACK = "INFERQ_TRACEBACK"
"""Environment variable that enables tracebacks of unexpected errors."""

_USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""The exception of a wrong command line; its module depends on the version of typer."""

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
    """Commands by name: the function of a module, or a group of commands."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        command = getattr(import_module(f"inferq.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            group: Any = get_command(command)
            for subcommand in group.commands.values():
                subcommand.params.append(_as_json())
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cls=Command)(command)
        made = get_command(single)
        made.params.append(_as_json())
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Command(TyperCommand):
    """A command whose help lists options by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, a section per group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            if record is not None:
                sections.setdefault(panel, []).append(record)
        sections["Options"] = sections.pop("Options", [])  # general options last
        for panel, records in sections.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


class Commands(TyperGroup):
    """Commands whose errors are one line on standard error."""

    def __init__(self, **attributes: Any) -> None:
        """The commands in the modules of this package."""
        super().__init__(**attributes)
        self.commands = cast("Any", Files())

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by the first lines of their modules, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(name)) for name in COMMANDS])

    def invoke(self, ctx: Any) -> Any:
        """Run a command and convert exceptions to an exit status."""
        try:
            value = super().invoke(ctx)
            gathered.end()
            return value
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
            has_name = error.filename and error.strerror
            _fail(f"{error.filename}: {error.strerror}" if has_name else str(error), 2)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except (typer.Abort, SystemExit):
            raise
        except MemoryError:
            _fail("not enough memory", 2)
        except BaseException as error:
            if hint := missing_extra(error):
                _fail(hint, 2)
            if os.environ.get(_TRACEBACK) or not (isinstance(error, Exception) or is_panic(error)):
                raise
            text = str(error).strip().partition("\n")[0]
            _fail(f"{type(error).__name__}: {text or 'no message'} ({_TRACEBACK}=1 shows the traceback)", 2)


def _first_line(command: str) -> str:
    """The first line of the docstring of a command's module, after its name."""
    source = (Path(__file__).parent / f"{command}.py").read_text(encoding="utf-8")
    line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].partition(": ")[2]
    return f"{line[:1].upper()}{line[1:]}"


def _as_json() -> Any:
    """The option `--json`, which every command has."""
    single = typer.Typer(add_completion=False)

    @single.command()
    def bearer(
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """A command with this option only."""

    option = get_command(single).params[0]
    option.expose_value = False
    option.callback = lambda _context, _option, value: gathered.begin() if value else None
    return option


def _hint(error: Any) -> None:
    """Add our name of an option of another tool to an error."""
    name = getattr(error, "option_name", None) or ""
    ours = option_of(name)
    if type(error).__name__ == "MissingParameter" and getattr(error.param, "help", None):
        error.message = error.param.help
    elif name == "--slo":
        error.message = "No such option: --slo; use it with capacity, plan, report, compare or sweep."
        error.possibilities = None
    elif ours is not None:
        error.message = f"No such option: {error.option_name}; did you mean {ours}?"
        error.possibilities = None


def _version(value: bool) -> None:
    if value:
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
        typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit."),
    ] = False,
) -> None:
    """Simulate LLM inference serving, with bit-identical results on every machine."""
