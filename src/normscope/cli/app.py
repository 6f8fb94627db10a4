"""The Typer application, the decorator that adds a command to it, and the format of its help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., None])

_EXAMPLE_WIDTH = 56  # with an indent and a backslash it fits into 60 columns
_BRACES = re.compile(r"^\{(.*)\}(\.{3})?$")
_TYPE = re.compile(r" <[\w\[\]|. ]+>$")
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Command(TyperCommand):
    """A command whose help names arguments plainly.

    Typer has ``{MODEL}`` in the usage and ``MODEL <str>`` in the list of arguments.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        super().format_options(ctx, _WithoutTypes(formatter))  # type: ignore[arg-type]


class _WithoutTypes:
    """A formatter that leaves out the types of arguments."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)

    def write_dl(self, rows: Iterable[tuple[str, str]], *given: Any, **named: Any) -> None:
        """Write names and descriptions in two columns."""
        untyped = [(_TYPE.sub("", name), text) for name, text in rows]
        self._formatter.write_dl(untyped, *given, **named)


def format_example(example: str) -> str:
    r"""Return the end of a help text: an example on lines that fit into a narrow terminal.

    >>> print(format_example("normscope lr my/net.py:build --data my/net.py:samples --json")[2:])
    Example: normscope lr my/net.py:build \
        --data my/net.py:samples --json
    """
    first, *options = re.split(r" (?=-)", example)  # an option stays with its value
    lines = [f"Example: {first}"]
    for option in options:
        if len(lines[-1]) + len(option) < _EXAMPLE_WIDTH:
            lines[-1] += f" {option}"
        else:
            lines.append(f"    {option}")
    return "\b\n" + " \\\n".join(lines)


app = typer.Typer(
    name="normscope",
    help="Find the learning rate at which a model breaks, measure its curvature in train mode, and "
    "see what each normalization changes.",
    epilog=format_example("normscope demo --out normscope-out"),
    rich_markup_mode=None,  # plain text: readable when piped, and one line for an error
    pretty_exceptions_enable=False,
    context_settings=_HELP_NAMES,
)


def command(
    name: str, summary: str = "", to: typer.Typer = app, cls: type[Command] = Command
) -> Callable[[Function], Function]:
    """Add the decorated function as a command.

    Its docstring is the help; a last paragraph "Example: normscope ..." becomes the example.

    Args:
        name: on the command line.
        summary: for the list of commands; by default the first line of the help.
        to: the application, or a group of it.
        cls: of the command.
    """

    def add(function: Function) -> Function:
        text, _, example = (inspect.getdoc(function) or "").partition("\n\nExample: ")
        end = format_example(" ".join(example.split()))
        to.command(name, cls=cls, help=text, short_help=summary or None, epilog=end)(function)
        return function

    return add


def print_help(name: str, function: Callable[..., None]) -> None:
    """Print help for a function as if it were a command of its own.

    Args:
        name: how it is called.
        function: has the arguments, the options and a docstring with an example.
    """
    single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_HELP_NAMES)
    command(name, to=single)(function)
    context = typer.main.get_command(single).make_context(name, [], resilient_parsing=True)
    typer.echo(context.get_help())
