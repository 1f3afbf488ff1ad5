"""The commands in one application, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from liquidcp_compiler import __version__
from liquidcp_compiler.cli.demo import demo
from liquidcp_compiler.cli.doctor import doctor
from liquidcp_compiler.cli.dump import dump
from liquidcp_compiler.cli.kernels import kernels
from liquidcp_compiler.cli.opt import opt
from liquidcp_compiler.cli.place import CONTEXT as PLACE_CONTEXT
from liquidcp_compiler.cli.place import place_command
from liquidcp_compiler.cli.plan_command import plan_command
from liquidcp_compiler.cli.run_command import run_command
from liquidcp_compiler.errors import LiquidCPError

BAD_INPUT, INTERRUPTED = 2, 130

#: The base of typer's own errors (an unknown option, a value of the wrong type), of typer's copy of click or of click.
USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="liquidcp",
    help="A compiler for context-parallel attention: plan a batch, look at the plan, run it, read its kernel.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo)
app.command("plan")(plan_command)
app.command("place", context_settings=PLACE_CONTEXT)(place_command)
app.command("dump")(dump)
app.command("run")(run_command)
app.command("opt")(opt)
app.command("doctor")(doctor)
app.add_typer(kernels, name="kernels")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"liquidcp {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code; bad input is 2, with one line on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], prog_name="liquidcp", standalone_mode=False)
        sys.stdout.flush()
    except LiquidCPError as error:
        return _bad_input(error)
    except USAGE_ERROR as error:
        return _bad_input(error.format_message())  # type: ignore[attr-defined]
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _bad_input(f"{error.filename or 'file'}: {error.strerror or error}")
    except MemoryError as error:
        return _bad_input(f"memory: {error or 'used up'}; plan a smaller batch, or one with larger tiles")
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _bad_input(error: LiquidCPError | str) -> int:
    """One line on stderr; the log of a compiler, where the error has one, comes below it."""
    log = getattr(error, "log", "")
    text = " ".join(str(error).removesuffix(log).split())
    print(f"error: {text}" + (f"\n{log}" if log else ""), file=sys.stderr)
    return BAD_INPUT
