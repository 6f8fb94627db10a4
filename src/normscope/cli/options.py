"""Options that several commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.names import completion_of

SCALES = ("quick", "small", "paper")
LARGEST_SEED = 2**62

# What stands in the help of an option wherever it is: only how it is given differs.
_MODEL: dict[str, Any] = {
    "metavar": "MODEL",
    "help": "A registered model, package.module:factory or file.py:factory.",
    "autocompletion": completion_of(kind="models"),
}
_DATA: dict[str, Any] = {
    "metavar": "DATA",
    "help": "A registered data set, package.module:function or file.py:function.",
    "autocompletion": completion_of(kind="data"),
}
_LOSS: dict[str, Any] = {
    "metavar": "LOSS",
    "help": "A registered loss, package.module:function or file.py:function.",
    "autocompletion": completion_of(kind="losses"),
}
_DEVICE: dict[str, Any] = {
    "metavar": "DEVICE",
    "help": "Where to compute: cpu, cuda, cuda:1 and the like.",
    "autocompletion": completion_of("cpu", "cuda", "mps"),
}
_SCALE: dict[str, Any] = {"metavar": "SCALE", "autocompletion": completion_of(*SCALES)}


def _checked_seed(seed: int | None) -> int | None:
    """Refuse what is no seed; a range in the help would be twenty digits long."""
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise typer.BadParameter(f"must be from 0 to {LARGEST_SEED}, got {seed}.")
    return seed


Model = Annotated[str, typer.Argument(**_MODEL)]
OptionalModel = Annotated[
    str | None, typer.Argument(show_default="random cases and built-in nets", **_MODEL)
]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", hidden=True, **_MODEL)]
Data = Annotated[str, typer.Option("--data", "-d", **_DATA)]
DataOption = Annotated[str | None, typer.Option("--data", "-d", **_DATA)]
InputData = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        show_default="iid normal inputs",
        **{
            **_DATA,
            "help": "Data whose inputs' moments are taken: registered, or file.py:function.",
        },
    ),
]
Loss = Annotated[str, typer.Option(**_LOSS)]
LossOfKind = Annotated[
    str,
    typer.Option(
        **{
            **_LOSS,
            "help": f"{_LOSS['help']} Counts for the kinds ggn and hessian: fisher is the "
            "matrix of half the squared error, whatever the loss.",
        }
    ),
]
LossOption = Annotated[str | None, typer.Option(show_default="cross_entropy", **_LOSS)]
Norm = Annotated[
    str | None,
    typer.Option(
        metavar="NORM",
        help="Normalization of a registered model; see normscope list norms.",
        show_default="batch",
        autocompletion=completion_of(kind="norms"),
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of a registered model, such as width=100; may be repeated.",
    ),
]
Momentum = Annotated[
    float, typer.Option(min=0, metavar="NUMBER", help="Heavy-ball momentum of SGD, below 1.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Samples in a batch.",
        show_default="256, or all samples if there are fewer",
    ),
]
NoVerify = Annotated[
    bool,
    typer.Option(
        "--no-verify", help="Predict the limit only, without the short runs that verify it."
    ),
]
Device = Annotated[str | None, typer.Option(show_default="where the model is made", **_DEVICE)]
ExperimentDevice = Annotated[str, typer.Option("--device", **_DEVICE)]
Seed = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        help="Seed of weights, choice of samples, dropout and start vectors.",
        callback=_checked_seed,
    ),
]
FirstSeed = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="First of the seeds.",
        show_default="0",
        callback=_checked_seed,
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        help="quick (seconds), small (minutes, real data) or paper (the paper's settings).",
        **_SCALE,
    ),
]
EmbeddedScale = Annotated[
    str,
    typer.Option(
        "--scale",
        help="quick (seconds), small (minutes) or paper (wider nets, more seeds).",
        **_SCALE,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting other than the scale's; may be repeated."
    ),
]
Figure = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FIGURE", help="Draw a figure into this file."),
]
Folder = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Write the files into this folder.")
]
Json = Annotated[bool, typer.Option("--json", help="Print strict JSON on stdout.")]

_EXAMPLE = 56  # columns of an example: with an indent and a backslash it fits into 60


def with_example(command: str) -> str:
    r"""The end of a help text: an example on lines of its own, however narrow the terminal is.

    >>> print(with_example("normscope lr examples/net.py:build --data examples/net.py:samples")[2:])
    Example: normscope lr examples/net.py:build \
        --data examples/net.py:samples
    """
    first, *options = re.split(r" (?=-)", command)  # an option stays with its value
    lines = [f"Example: {first}"]
    for option in options:
        if len(lines[-1]) + len(option) < _EXAMPLE:
            lines[-1] += f" {option}"
        else:
            lines.append(f"    {option}")
    return "\b\n" + " \\\n".join(lines)
