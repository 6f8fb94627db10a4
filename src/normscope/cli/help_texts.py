"""How commands show their help: arguments by the name they are given, without types and braces."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer.core import TyperCommand

__all__ = ["Command", "help_parts", "print_help"]

_BRACES = re.compile(r"^\{(.*)\}(\.{3})?$")
_TYPE = re.compile(r" <[\w\[\]|. ]+>$")


def help_parts(command: Callable[..., None]) -> tuple[str, str]:
    """The help of a command's function, and the example at the end of its docstring."""
    text, _, example = (inspect.getdoc(command) or "").partition("\n\nExample: ")
    return text, " ".join(example.split())


class Command(TyperCommand):
    """A command whose arguments are named in its help as they are in its text.

    Typer has ``{MODEL}`` in the usage and ``MODEL <str>`` in the list of arguments.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The pieces of the usage line."""
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        super().format_options(ctx, _Untyped(formatter))  # type: ignore[arg-type]


class _Untyped:
    """A formatter that leaves out the types of arguments."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)

    def write_dl(self, rows: Iterable[tuple[str, str]], *given: Any, **named: Any) -> None:
        """Write names and what they are in two columns."""
        untyped = [(_TYPE.sub("", name), text) for name, text in rows]
        self._formatter.write_dl(untyped, *given, **named)


def print_help(name: str, function: Callable[..., None]) -> None:
    """Print the help of what is called like a command of its own.

    Args:
        name: how it is called.
        function: its arguments and options, and its docstring with an example.
    """
    from normscope.cli.options import with_example

    text, example = help_parts(function)
    names = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=names)
    app.command(cls=Command, help=text, epilog=with_example(example))(function)
    command = typer.main.get_command(app)
    context = command.make_context(name, [], resilient_parsing=True)
    typer.echo(context.get_help())
