"""``normscope compare``: the same net under several normalizations."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from normscope.cli.figures import check_figure, save_figure
from normscope.cli.options import (
    Data,
    Device,
    Figure,
    Json,
    Loss,
    Model,
    ModelOptions,
    Momentum,
    NoVerify,
    Seed,
    StepBatchSize,
)

Norms = Annotated[
    str,
    typer.Option("--norms", metavar="NORMS", help="Kinds of normalization, separated by commas."),
]
Steps = Annotated[
    int, typer.Option(min=1, metavar="NUMBER", help="Of the training at half the limit.")
]

_PARTS = 20  # of one normalization, for the progress bar


def compare(
    model: Model,
    data: Data,
    norms: Norms = "none,batch,layer",
    loss: Loss = "cross_entropy",
    momentum: Momentum = 0.0,
    option: ModelOptions = None,
    batch_size: StepBatchSize = None,
    steps: Steps = 200,
    no_verify: NoVerify = False,
    device: Device = None,
    seed: Seed = 0,
    as_json: Json = False,
    out: Figure = None,
) -> None:
    """Learning-rate limits, curvature and training of one net under several normalizations.

    Example: normscope compare fully_connected --data digits --norms none,batch,layer
    """
    from normscope.cli import sources
    from normscope.cli.output import print_answer, progress_over
    from normscope.cli.places import blaming
    from normscope.learning_rate import compare as compared

    check_figure(out)
    kinds = [kind.strip() for kind in norms.split(",") if kind.strip()]
    samples = sources.load_data(data, seed)
    network = sources.load_model(model, samples, None, option or (), seed, device)
    given: dict[str, Any] = {
        "norms": kinds,
        "momentum": momentum,
        "verify": not no_verify,
        "batch_size": sources.step_batch_size(samples, batch_size),
        "steps": steps,
        "seed": seed,
    }
    with progress_over(_PARTS * max(len(kinds), 1), "compare") as begin:
        problem = network, sources.load_loss(loss), samples
        ask = partial(compared, *problem, progress=begin, **given)
        comparison = blaming(f"{model} with {loss} on {data}", ask)
    if out is not None:
        save_figure(comparison.plot(), out)
    print_answer(comparison, {"model": model, "data": data, "loss": loss}, out, as_json)
