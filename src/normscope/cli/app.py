"""The Typer application, the decorator that adds a command to it, and the format of its help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., None])

_EXAMPLE_WIDTH = 56  # with an indent and a backslash it fits into 60 columns
_BRACES = re.compile(r"^\{(.*)\}(\.{3})?$")
_TYPE = re.compile(r" <[\w\[\]|. ]+>$")
OUTPUT = "Output"
"""Heading of the options that say what is printed and written; `--help` is one of them."""

_UNGROUPED = 8  # options at most that stay one list
_OWN_GROUPS: dict[str, str] = {}  # heading of the options without a group, by command
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Command(TyperCommand):
    """A command whose help names arguments plainly and groups its options.

    Typer has ``{MODEL}`` in the usage and ``MODEL <str>`` in the list of arguments, and groups
    options only in boxes that rich draws.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options in groups, those of the output last."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                rows.setdefault(self._group(each), []).append(_plain_record(each, *record))
        for group in sorted(rows, key=lambda name: name == OUTPUT):
            with formatter.section(group):
                formatter.write_dl(rows[group])

    def _group(self, parameter: Any) -> str:
        """Return the heading of a parameter in the help."""
        if parameter.param_type_name == "argument":
            return "Arguments"
        options = [each for each in self.params if each.param_type_name == "option"]
        if len(options) <= _UNGROUPED:
            return "Options"
        if "--help" in parameter.opts:
            return OUTPUT
        own = _OWN_GROUPS.get(self.name or "", "Options")
        return getattr(parameter, "rich_help_panel", None) or own


def _plain_record(parameter: Any, name: str, text: str) -> tuple[str, str]:
    """Return a row of the help without the type of an argument, and a default in words as it is.

    Typer puts such a default into parentheses.
    """
    shown = parameter.show_default
    if isinstance(shown, str):
        text = text.replace(f"default: ({shown})", f"default: {shown}")
    return _TYPE.sub("", name), text


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
    name: str,
    summary: str = "",
    to: typer.Typer = app,
    cls: type[Command] = Command,
    own: str = "Options",
) -> Callable[[Function], Function]:
    """Add the decorated function as a command.

    Its docstring is the help; a last paragraph "Example: normscope ..." becomes the example.

    Args:
        name: on the command line.
        summary: for the list of commands; by default the first line of the help.
        to: the application, or a group of it.
        cls: of the command.
        own: heading, in the help, of the options that have no group.
    """
    _OWN_GROUPS[name] = own

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
