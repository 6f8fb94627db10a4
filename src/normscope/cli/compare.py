"""``normscope compare``: the same net under several normalizations."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.curvature import (
    Data,
    Json,
    Loss,
    Model,
    ModelOptions,
    Seed,
    _check_figure,
)
from normscope.cli.lr import BatchSize, Momentum, NoVerify

Norms = Annotated[str, typer.Option("--norms", help="Kinds of normalization, separated by commas.")]
Steps = Annotated[int, typer.Option(min=1, help="Of the training at half the limit.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FIGURE", help="Draw the comparison.")
]

_PARTS = 20  # of one normalization, for the progress bar


def compare(
    model: Model,
    data: Data,
    norms: Norms = "none,batch,layer",
    loss: Loss = "cross_entropy",
    momentum: Momentum = 0.0,
    option: ModelOptions = None,
    batch_size: BatchSize = None,
    steps: Steps = 200,
    no_verify: NoVerify = False,
    seed: Seed = 0,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Learning-rate limits, curvature and training of one net under several normalizations.

    Example: normscope compare fully_connected --data digits --norms none,batch,layer
    """
    from normscope.cli import sources
    from normscope.cli.lr import chosen_batch_size
    from normscope.cli.output import print_json, progress_over
    from normscope.learning_rate import compare as compared

    _check_figure(out)
    kinds = [kind.strip() for kind in norms.split(",") if kind.strip()]
    samples = sources.load_data(data, seed)
    network = sources.load_model(model, samples, None, option or (), seed)
    size = chosen_batch_size(samples, batch_size)
    with progress_over(_PARTS * max(len(kinds), 1), "compare") as begin:
        ask = partial(
            compared,
            network,
            sources.load_loss(loss),
            samples,
            norms=kinds,
            momentum=momentum,
            verify=not no_verify,
            batch_size=size,
            steps=steps,
            seed=seed,
            progress=begin,
        )
        comparison = sources.blaming(f"{model} with {loss} on {data}", ask)
    if out is not None:
        from normscope.files import replacing

        with replacing(out) as unfinished:
            comparison.plot().savefig(unfinished)
    if as_json:
        figure = None if out is None else str(out)
        source = {"model": model, "data": data, "loss": loss}
        print_json({**source, **comparison.to_dict(), "figure": figure})
        return
    typer.echo(str(comparison))
    if out is not None:
        typer.echo(f"Figure: {out}")
