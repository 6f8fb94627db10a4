"""Options that several commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.names import completion_of

SCALES = ("quick", "small", "paper")
LARGEST_SEED = 2**62

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A registered model, package.module:factory or file.py:factory.",
        autocompletion=completion_of(kind="models"),
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="A registered data set, package.module:function or file.py:function.",
        autocompletion=completion_of(kind="data"),
    ),
]
Loss = Annotated[
    str,
    typer.Option(
        metavar="LOSS",
        help="A registered loss, package.module:function or file.py:function.",
        autocompletion=completion_of(kind="losses"),
    ),
]
Norm = Annotated[
    str | None,
    typer.Option(
        metavar="NORM",
        help="Normalization of a registered model.",
        show_default="batch",
        autocompletion=completion_of(kind="norms"),
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Of a registered model: width=100."),
]
Momentum = Annotated[
    float, typer.Option(min=0, metavar="NUMBER", help="Heavy-ball momentum, below 1.")
]
StepBatchSize = Annotated[
    int | None,
    typer.Option(min=1, metavar="NUMBER", help="Samples in a batch.", show_default="256"),
]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="No short runs: answer at once.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="Such as cpu, cuda or cuda:1.",
        show_default="where the model is made",
        autocompletion=completion_of("cpu", "cuda", "mps"),
    ),
]


def _checked_seed(seed: int | None) -> int | None:
    """Refuse what is no seed; a range in the help would be twenty digits long."""
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise typer.BadParameter(f"must be from 0 to {LARGEST_SEED}, got {seed}.")
    return seed


Seed = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        help="Seed of weights, samples, dropout and starts.",
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
        metavar="SCALE",
        help="quick (seconds), small (minutes, real data) or paper (the paper's settings).",
        autocompletion=completion_of(*SCALES),
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting other than the scale's."),
]
Figure = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FIGURE", help="Draw a figure into this file."),
]
Folder = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="For what is written.")]
Json = Annotated[bool, typer.Option("--json", help="Print strict JSON on stdout.")]


def with_example(command: str) -> str:
    """The end of a help text: an example, on a line of its own however narrow the terminal is."""
    return f"\b\nExample: {command}"
