"""The command ``normscope``: mounts one file per command and maps every ending to an exit code.

0 done; 1 a check failed; 2 usage or input error (one line on stderr); 130 after Ctrl-C.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from normscope import __version__
from normscope.cli import (
    check,
    compare,
    curvature,
    data,
    demo,
    listing,
    lr,
    report,
    run,
    sweep,
    theory,
)
from normscope.cli.help_texts import Command, help_parts
from normscope.cli.options import with_example
from normscope.errors import NormscopeError

app = typer.Typer(
    name="normscope",
    help="Shows what normalization does to a network: its loss landscape, its curvature, and how "
    "large a learning rate it can take.",
    epilog=with_example("normscope demo --out normscope-out"),
    rich_markup_mode=None,  # plain text: readable when piped, and one line for an error
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _mount(
    name: str, command: Callable[..., None], summary: str, shown: type[Command] = Command
) -> None:
    """Add a command; the example at the end of its docstring stays on one line of the help."""
    text, example = help_parts(command)
    end = with_example(example)
    app.command(name, cls=shown, help=text, short_help=summary, epilog=end)(command)


_mount("demo", demo.demo, "The main job on embedded data: figures and a report.")
_mount("lr", lr.lr, "How large a learning rate a model can take, and why.")
_mount("compare", compare.compare, "One net under several normalizations, side by side.")
_mount("curvature", curvature.curvature, "Eigenvalues and spectrum of a model's curvature.")
_mount("theory", theory.theory, "The largest eigenvalue, by mean-field theory alone.")
_mount("check", check.check, "The theorems on random cases, built-in nets, your layers.")
_mount("run", run.run, "Reproduce a figure of a paper and judge its claims.")
_mount(
    "sweep",
    sweep.sweep,
    "Phase diagrams and other sweeps: resumable, parallel.",
    sweep.SweepCommand,
)
_mount("report", report.report, "One HTML file of results: claims, figures, data.")
_mount("list", listing.list_names, "Everything that has a name here, one line each.")
app.add_typer(data.app, name="data")


_COMPLETION = "_NORMSCOPE_COMPLETE"  # set by the shell when it asks for completions

# Typer carries its own copy of click since 0.26 and used the package before; both name the root of
# all usage errors so.
_UsageProblem: type[Exception] = next(
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
)


_INVALID = re.compile(r"Invalid value for '(\S+)[^']*': (.*)", re.DOTALL)
_RULES = tuple(  # how Typer refuses a value, since it checks by itself and before, and what we say
    (re.compile(reason), rule)
    for reason, rule in (
        (r"greater than or equal to (\S+?)\.?$", "at least {}"),
        (r"not in the range x>=(\S+?)\.$", "at least {}"),
        (r"valid integer", "a whole number"),
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


def _print_in_any_encoding() -> None:
    """A letter that a terminal or a file cannot show is no reason to lose an answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None:
        _print_in_any_encoding()
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except NormscopeError as error:
        return _complain(str(error))
    except _UsageProblem as problem:
        return _complain(_described(problem))
    except (KeyboardInterrupt, typer.Abort) as end:
        return _complain(str(end) or "interrupted", code=130)
    except BrokenPipeError:
        # The reader has seen enough (`normscope ... | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'file'}: {error.strerror or error}")


def _run(arguments: list[str]) -> int:
    """Run the command; Typer's own runner would take Ctrl-C, closed pipes and errors for itself."""
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


def _described(problem: Exception) -> str:
    """A usage error in words; its class is Typer's, known only at run time.

    What is missing is shown by the example of the help, and subcommands by their names.
    """
    text: str = getattr(problem, "format_message", problem.__str__)()
    if refused := _INVALID.match(text):
        for reason, rule in _RULES:
            if found := reason.search(refused[2]):
                return f"{refused[1]} must be {rule.format(*found.groups())}."
    context = getattr(problem, "ctx", None)
    if context is None or not text.startswith("Missing "):
        return text
    commands = getattr(context.command, "commands", None)
    if commands:
        text += f" Choose one of {', '.join(sorted(commands))}."
    example: str = (context.command.epilog or "").lstrip("\b\n").replace("\\\n", "")
    return f"{text} {example}"


def _complain(message: str, code: int = 2) -> int:
    print(f"normscope: {' '.join(message.split())}", file=sys.stderr)
    return code
