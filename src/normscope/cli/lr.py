"""``normscope lr``: how large a learning rate a model can take."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.figures import check_figure, draw_on
from normscope.cli.names import completion_of
from normscope.cli.options import (
    BatchSize,
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
)

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice
    from normscope.training.optimizers import OptimizerFactory

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum, with SGD.")]
WeightDecay = Annotated[float, typer.Option(min=0, metavar="NUMBER", help="Weight decay of SGD.")]
OptimizerName = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="sgd, adam, adamw or rmsprop.",
        autocompletion=completion_of(*OPTIMIZERS),
    ),
]


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
    device: Device = None,
    seed: Seed = 0,
    as_json: Json = False,
    out: Figure = None,
) -> None:
    """How large a learning rate a model can take, by its curvature, by theory, by short runs.

    The runs train copies. Recommended is half the rate at which training becomes unstable: within
    100 steps its loss is not finite, or beyond 1.5 times its first value (3 times for the squared
    error). normscope sweep calls a training diverged at 1000 times only. The default loss is
    cross_entropy, which classifiers are trained with; normscope sweep has squared_error, as the
    diagrams of wei2018 and their theory.

    Example: normscope lr examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.cli import sources
    from normscope.cli.answer import print_answer
    from normscope.cli.batches import note_conversion
    from normscope.cli.trained import trained_words

    sources.check_names(model, data, loss, norm)
    rule = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    check_optimizer(optimizer, rule)
    check_figure(out)
    samples = sources.load_data(data, seed)
    network = sources.load_model(model, samples, norm, option or (), seed, device)
    note_conversion(samples, network)
    given = advice_options(samples, rule, optimizer, batch_size, no_verify, seed)
    place = f"{model} with {loss} on {data}"
    advice = _advice(place, network, sources.load_loss(loss), samples, given)
    instead = "too" if loss == "squared_error" else "instead"
    note = (
        f"Of: {place}, batches of {advice.batch_size}, {trained_words(network)}; normscope theory "
        f"is about half the squared error {instead}."
    )
    asked: dict[str, object] = {"model": model, "data": data, "loss": loss}
    title = f"{place}, batches of {advice.batch_size}"
    with draw_on(out, advice.plot, title) as figure:
        print_answer(advice, asked, figure, as_json, note)


def advice_options(
    samples: Any,
    rule: dict[str, Any],
    optimizer: str,
    batch_size: int | None,
    no_verify: bool,
    seed: int,
) -> dict[str, Any]:
    """What `max_learning_rate` and `compare` are called with, of what was given.

    Args:
        samples: the data.
        rule: momentum, nesterov and weight_decay of SGD.
        optimizer: its name.
        batch_size: samples per step; None: as many as the command takes by itself.
        no_verify: whether short runs are left out.
        seed: of everything random.
    """
    from normscope.cli.batches import step_batch_size

    return {
        **rule,
        "verify": not no_verify,
        "optimizer": optimizer_named(optimizer),
        "batch_size": step_batch_size(samples, batch_size),
        "seed": seed,
    }


def _advice(place: str, network: Any, loss: Any, samples: Any, given: dict[str, Any]) -> Advice:
    from normscope.cli.batches import parts_of_advice
    from normscope.cli.output import PARTS, UNEVEN, progress
    from normscope.import_path import call_user_code
    from normscope.learning_rate import max_learning_rate

    parts = parts_of_advice(samples, given["batch_size"], given["verify"])
    counted = UNEVEN if given["verify"] else PARTS  # how many runs it takes shows
    with progress("learning rate", parts, counted) as begin:
        ask = partial(max_learning_rate, network, loss, samples, progress=begin, **given)
        return call_user_code(place, ask)


def check_optimizer(name: str, rule: dict[str, Any]) -> None:
    """Refuse an optimizer that there is none of, or options that it has not; torch is not loaded.

    Args:
        name: what was given.
        rule: momentum, nesterov and weight_decay of SGD.

    Raises:
        UnknownNameError: if it is none of `OPTIMIZERS`.
        InputError: if options of SGD are given with another.
    """
    from normscope.errors import InputError
    from normscope.registry import unknown_name

    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    given = [f"--{option.replace('_', '-')}" for option, value in rule.items() if value]
    if given and name != "sgd":
        are, them = ("are options", "them") if len(given) > 1 else ("is an option", "it")
        raise InputError(
            f"{' and '.join(given)} {are} of sgd, and --optimizer is {name}; leave {them} out."
        )


def optimizer_named(name: str) -> OptimizerFactory | None:
    """The factory of a torch optimizer; None for SGD, which has options of its own.

    Args:
        name: sgd, adam, adamw or rmsprop.

    Returns:
        The factory, at any learning rate.
    """
    from torch.optim import Adam, AdamW, RMSprop

    known: dict[str, Any] = {"adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}
    return None if name == "sgd" else partial(known[name], lr=1e-3)
