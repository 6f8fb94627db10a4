"""Options that several commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A registered model, package.module:factory or file.py:factory."
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data", "-d", help="A registered data set, module:function or file.py:function."
    ),
]
Loss = Annotated[str, typer.Option(help="A registered loss or module:function.")]
Norm = Annotated[
    str | None, typer.Option(help="Normalization of a registered model.", show_default="batch")
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Of a registered model: width=100."),
]
Momentum = Annotated[float, typer.Option(min=0, help="Of SGD, below 1.")]
StepBatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples per step.", show_default="256")
]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="No short runs: answer at once.")]
Seed = Annotated[
    int, typer.Option(min=0, max=2**62, help="Of weights, choice of samples, dropout and start.")
]
Json = Annotated[bool, typer.Option("--json", help="Print strict JSON on stdout.")]
