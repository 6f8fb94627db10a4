"""``normscope lr``: how large a learning rate a model can take."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.figures import check_figure, draw_on
from normscope.cli.names import completion_of
from normscope.cli.options import (
    Data,
    Device,
    Figure,
    Json,
    Loss,
    Model,
    ModelOptions,
    Momentum,
    Norm,
    NoVerify,
    Seed,
    StepBatchSize,
)

if TYPE_CHECKING:
    from normscope.training.optimizers import OptimizerFactory

Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")]
WeightDecay = Annotated[float, typer.Option(min=0, metavar="NUMBER", help="Of SGD.")]
OptimizerName = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="sgd, adam, adamw or rmsprop.",
        autocompletion=completion_of("sgd", "adam", "adamw", "rmsprop"),
    ),
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
    batch_size: StepBatchSize = None,
    no_verify: NoVerify = False,
    device: Device = None,
    seed: Seed = 0,
    as_json: Json = False,
    out: Figure = None,
) -> None:
    """The largest learning rate: safe, predicted, and verified by short runs on copies.

    Example: normscope lr examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.cli import sources
    from normscope.cli.output import print_answer, progress_over
    from normscope.cli.places import blaming
    from normscope.learning_rate import max_learning_rate

    check_figure(out)
    samples = sources.load_data(data, seed)
    network = sources.load_model(model, samples, norm, option or (), seed, device)
    given: dict[str, Any] = {
        "momentum": momentum,
        "verify": not no_verify,
        "optimizer": optimizer_named(optimizer),
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "batch_size": sources.step_batch_size(samples, batch_size),
        "seed": seed,
    }
    with progress_over(_PLANNED, "learning rate") as begin:
        problem = network, sources.load_loss(loss), samples
        ask = partial(max_learning_rate, *problem, progress=begin, **given)
        advice = blaming(f"{model} with {loss} on {data}", ask)
    draw_on(out, advice.plot)
    print_answer(advice, {"model": model, "data": data, "loss": loss}, out, as_json)


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
