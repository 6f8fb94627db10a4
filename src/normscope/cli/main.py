"""The command ``normscope``: runs a command and maps every ending to an exit code.

0 done; 1 a check failed; 2 usage or input error (one line on stderr); 130 after Ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from typing import Annotated

import typer

from normscope import __version__
from normscope.cli.app import app
from normscope.errors import NormscopeError

COMMANDS = (
    *("demo", "lr", "compare", "doctor", "curvature", "landscape", "theory", "check"),
    *("run", "sweep", "watch", "report", "listing", "data"),
)
"""The modules of the commands, in the order of the help; each uses the decorator `command`."""

for _name in COMMANDS:
    importlib.import_module(f"normscope.cli.{_name}")

_COMPLETION = "_NORMSCOPE_COMPLETE"  # set by the shell when it asks for completions

# Typer has its own copy of click since 0.26 and used the package before; in both this is the name
# of the root of all usage errors.
_UsageError: type[Exception] = next(
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
)

_INVALID = re.compile(r"Invalid value for '(\S+)[^']*': (.*)", re.DOTALL)
_RULES = tuple(  # how versions of Typer reject a value, and what we print
    (re.compile(reason), rule)
    for reason, rule in (
        (r"greater than or equal to (\S+?)\.?$", "at least {}"),
        (r"not in the range x>=(\S+?)\.$", "at least {}"),
        (r"valid integer", "an integer"),
        (r"valid (?:number|float)", "a number"),
    )
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normscope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None:
        _replace_unencodable()
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except NormscopeError as error:
        return _print_error(str(error))
    except _UsageError as error:
        return _print_error(_describe(error))
    except (KeyboardInterrupt, typer.Abort) as end:
        return _print_error(str(end) or "interrupted", code=130)
    except BrokenPipeError:
        # The reader has closed the pipe (`normscope ... | head`); no traceback at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _print_error(f"{error.filename or 'file'}: {error.strerror or error}")


def _replace_unencodable() -> None:
    """Print a question mark for a character that a terminal or file cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(arguments: list[str]) -> int:
    """Run the command without Typer's runner, which handles Ctrl-C, pipes and errors itself."""
    if _COMPLETION in os.environ:
        app(prog_name="normscope")  # answers the shell and exits
    command = typer.main.get_command(app)
    try:
        with command.make_context("normscope", list(arguments) or ["--help"]) as context:
            command.invoke(context)
        code = 0
    except typer.Exit as end:
        code = end.exit_code
    sys.stdout.flush()
    return code


def _describe(error: Exception) -> str:
    """Return a usage error as one sentence, with the example of the help if something is missing.

    Its class is Typer's, known only at run time.
    """
    text: str = getattr(error, "format_message", error.__str__)()
    if invalid := _INVALID.match(text):
        for reason, rule in _RULES:
            if found := reason.search(invalid[2]):
                return f"{invalid[1]} must be {rule.format(*found.groups())}."
    context = getattr(error, "ctx", None)
    if context is None or not text.startswith("Missing "):
        return text
    commands = getattr(context.command, "commands", None)
    if commands:
        text += f" Choose one of {', '.join(sorted(commands))}."
    example: str = (context.command.epilog or "").lstrip("\b\n").replace("\\\n", "")
    return f"{text} {example}"


def _print_error(message: str, code: int = 2) -> int:
    print(f"normscope: {' '.join(message.split())}", file=sys.stderr)
    return code
