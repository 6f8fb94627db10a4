"""``normscope lr``: how large a learning rate a model can take."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.curvature import (
    Data,
    Json,
    Loss,
    Model,
    ModelOptions,
    Norm,
    Seed,
    _check_figure,
)

if TYPE_CHECKING:
    from normscope.learning_rate import Advice
    from normscope.training.optimizers import OptimizerFactory

Momentum = Annotated[float, typer.Option(min=0, help="Of SGD, below 1.")]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")]
WeightDecay = Annotated[float, typer.Option(min=0, help="Of SGD.")]
OptimizerName = Annotated[str, typer.Option("--optimizer", help="sgd, adam, adamw or rmsprop.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per step.", show_default="256")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="No short runs: answer at once.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FIGURE", help="Draw rates and runs.")
]

_PLANNED = 18  # parts of a typical answer, for the progress bar


def lr(
    model: Model,
    data: Data,
    loss: Loss = "cross_entropy",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: WeightDecay = 0.0,
    optimizer: OptimizerName = "sgd",
    norm: Norm = None,
    option: ModelOptions = None,
    batch_size: BatchSize = None,
    no_verify: NoVerify = False,
    seed: Seed = 0,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """The largest learning rate: safe, predicted, and verified by short runs on copies.

    Example: normscope lr examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.cli import sources
    from normscope.cli.output import print_json, progress_over
    from normscope.learning_rate import max_learning_rate

    _check_figure(out)
    recipe = optimizer_named(optimizer)
    samples = sources.load_data(data, seed)
    network = sources.load_model(model, samples, norm, option or (), seed)
    size = chosen_batch_size(samples, batch_size)
    with progress_over(_PLANNED, "learning rate") as begin:
        ask = partial(
            max_learning_rate,
            network,
            sources.load_loss(loss),
            samples,
            momentum,
            not no_verify,
            optimizer=recipe,
            nesterov=nesterov,
            weight_decay=weight_decay,
            batch_size=size,
            seed=seed,
            progress=begin,
        )
        advice = sources.blaming(f"{model} with {loss} on {data}", ask)
    _draw(advice, out)
    if as_json:
        figure = None if out is None else str(out)
        source = {"model": model, "data": data, "loss": loss}
        print_json({**source, **advice.to_dict(), "figure": figure})
        return
    typer.echo(str(advice))
    if out is not None:
        typer.echo(f"Figure: {out}")


def optimizer_named(name: str) -> OptimizerFactory | None:
    """The factory of a torch optimizer; None for SGD, which has options of its own.

    Args:
        name: sgd, adam, adamw or rmsprop.

    Returns:
        The factory, at any learning rate.

    Raises:
        UnknownNameError: if there is no such optimizer.
    """
    from torch.optim import Adam, AdamW, RMSprop

    from normscope.registry import unknown_name

    known: dict[str, Any] = {"adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}
    if name == "sgd":
        return None
    if name not in known:
        raise unknown_name("optimizer", name, ["sgd", *known])
    return partial(known[name], lr=1e-3)


def chosen_batch_size(samples: Any, batch_size: int | None) -> int | None:
    """The batch size to train a source of data with.

    Args:
        samples: as ``sources.load_data`` returns it.
        batch_size: what the user asked for.

    Returns:
        That; or 256 for one pair of more samples; None for batches of their own.

    Raises:
        InputError: if the data has batches of its own and a size is asked for.
    """
    from normscope.cli.sources import DEFAULT_BATCH_SIZE
    from normscope.errors import InputError

    if isinstance(samples, tuple):
        return min(DEFAULT_BATCH_SIZE, len(samples[0])) if batch_size is None else batch_size
    if batch_size is not None:
        raise InputError(
            "the data comes in batches of its own; leave the batch size out, or return one pair "
            "(inputs, targets) of all samples."
        )
    return None


def _draw(advice: Advice, out: Path | None) -> None:
    if out is None:
        return
    from normscope.files import replacing
    from normscope.plots.style import new_figure

    figure = new_figure()
    advice.plot(figure.subplots())
    with replacing(out) as unfinished:
        figure.savefig(unfinished)
