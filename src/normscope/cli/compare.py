"""``normscope compare``: the same net under several normalizations."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.destinations import printing_first
from normscope.cli.figures import check_figure, save_figure
from normscope.cli.lr import (
    Nesterov,
    OptimizerName,
    WeightDecay,
    advice_options,
    check_optimizer,
)
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
    NoVerify,
    Seed,
)

if TYPE_CHECKING:
    from torch import nn

    from normscope.learning_rate import Comparison

Norms = Annotated[
    str,
    typer.Option(
        "--norms",
        metavar="NORMS",
        help="Kinds of normalization, separated by commas; see normscope list norms.",
    ),
]
Steps = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Steps of the training at half the limit, which --no-verify does not leave out.",
    ),
]

_VERIFIED = """\
curvature bound: 2 (1 + momentum) / lambda_max, lowered if a run failed below it.
limit: where training became unstable in short runs."""
_PREDICTED = """\
curvature bound: 2 (1 + momentum) / lambda_max, the largest rate that the curvature allows.
limit: where training is expected to become unstable; no run has verified it."""
_LEGEND = """\
predicted: the limit predicted, before any run.
λ: largest eigenvalue of the loss's Gauss-Newton matrix, as training feels it (train), with batch \
statistics as constants (frozen) and with the running ones (eval), at the start; the curvature \
bound follows the first steps too, which may be steeper.
growth: of the squared gradient per layer, backwards."""


def compare(
    model: Model,
    data: Data,
    norms: Norms = "none,batch,layer",
    loss: Loss = "cross_entropy",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: WeightDecay = 0.0,
    optimizer: OptimizerName = "sgd",
    option: ModelOptions = None,
    batch_size: BatchSize = None,
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
    from normscope.cli.answer import print_answer
    from normscope.cli.batches import note_conversion

    place = f"{model} with {loss} on {data}"
    kinds = [kind.strip() for kind in norms.split(",") if kind.strip()]
    sources.check_names(model, data, loss, *kinds)
    rule = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    check_optimizer(optimizer, rule)
    check_figure(out)

    samples = sources.load_data(data, seed)
    network = sources.load_model(model, samples, None, option or (), seed, device)
    note_conversion(samples, network)
    given = advice_options(samples, rule, optimizer, batch_size, no_verify, seed)
    problem = network, sources.load_loss(loss), samples
    comparison = _compared(place, problem, {**given, "norms": kinds, "steps": steps})
    first = _PREDICTED if no_verify else _VERIFIED
    source = _source(place, network, comparison)
    legend = (first, _criterion(comparison), _LEGEND, _averaged(steps), source)
    asked: dict[str, object] = {"model": model, "data": data, "loss": loss}
    with printing_first(partial(_drawn, comparison, out)) as figure:
        print_answer(comparison, asked, figure, as_json, "\n".join(legend))


def _drawn(comparison: Comparison, out: Path | None) -> Path | None:
    return None if out is None else save_figure(comparison.plot(), out)


def _averaged(steps: int) -> str:
    """What the last column is a mean of."""
    from normscope.learning_rate.comparison import AVERAGED

    which = f"the last {AVERAGED}" if steps > AVERAGED else "all"
    return f"loss: of training at half the limit, the mean of {which} steps."


def _compared(place: str, problem: tuple[Any, ...], given: dict[str, Any]) -> Comparison:
    from normscope.cli.batches import parts_of_advice
    from normscope.cli.output import PARTS, progress
    from normscope.errors import InputError
    from normscope.import_path import call_user_code
    from normscope.learning_rate import compare as compared
    from normscope.learning_rate.comparison import UnfitNormError

    norms, verify = given["norms"], given["verify"]
    parts = parts_of_advice(problem[-1], given["batch_size"], verify) + 1  # a training
    counted = "part {} of about {}" if verify else PARTS
    with progress("compare", parts * max(len(norms), 1), counted) as tell:
        ask = partial(compared, *problem, progress=tell, **given)
        try:
            return call_user_code(place, ask)
        except UnfitNormError as error:  # in the words of the command line
            option = f"--norms {','.join(error.fitting)}"
            raise InputError(str(error).replace(f"norms={error.fitting}", option)) from error


def _source(place: str, network: nn.Module, comparison: Comparison) -> str:
    """What the table is of; another normalization may have more or fewer parameters."""
    from normscope.cli.trained import trained_words

    advice = comparison.rows[0].advice
    trained = trained_words(network, whose=" of the model as given")
    return f"Of: {place}, {advice.rule}, batches of {advice.batch_size}, {trained}."


def _criterion(comparison: Comparison) -> str:
    limit = comparison.rows[0].advice.growth_limit
    assert limit is not None  # compare tells it
    return f"unstable: the loss is not finite, or beyond {limit:g} times its first value."
