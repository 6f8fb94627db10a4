"""``normscope theory``: largest eigenvalue and learning rate from the architecture alone."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.figures import check_figure, draw_on
from normscope.cli.names import completion_of
from normscope.cli.options import (
    Figure,
    InputData,
    Json,
    Model,
    ModelOptions,
    Momentum,
    Norm,
    Seed,
)
from normscope.cli.theory_output import Basis, print_as_json, print_predictions
from normscope.cli.values import numbers
from normscope.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from normscope.meanfield import Prediction

Gamma = Annotated[
    str | None,
    typer.Option(
        metavar="VALUES",
        help="Scale of every norm layer: a value, a list 0.5,1,2, a range 0.1:3:30 "
        "(first:last:count) or 0.1:3:30:log.",
        show_default="the model's own",
    ),
]
Closure = Annotated[
    str,
    typer.Option(
        metavar="CLOSURE",
        help="How the theory treats batch statistics: train (differentiated through, as training "
        "does), frozen (as constants), printed (the paper to the letter) or all three.",
        autocompletion=completion_of("train", "frozen", "printed", "all"),
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="Sizes of one sample, such as 3,32,32.",
        show_default="those of the data or the model",
    ),
]
Parameters = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="weights (as in the paper) or all (biases, scales and shifts too).",
        autocompletion=completion_of("weights", "all"),
    ),
]
TheoryBatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        metavar="NUMBER",
        help="Samples in a batch.",
        show_default="256",
    ),
]
Plot = Annotated[bool, typer.Option("--plot", help="Draw a figure into theory.svg.")]


def theory(
    model: Model,
    gamma: Gamma = None,
    closure: Closure = "train",
    data: InputData = None,
    input_shape: InputShape = None,
    norm: Norm = None,
    option: ModelOptions = None,
    batch_size: TheoryBatchSize = None,
    momentum: Momentum = 0.0,
    parameters: Parameters = "weights",
    seed: Seed = 0,
    plot: Plot = False,
    as_json: Json = False,
    out: Figure = None,
) -> None:
    """Largest eigenvalue of the Fisher matrix at initialization, by mean-field theory.

    The Fisher matrix is the curvature of half the squared error; normscope lr has the limit for
    any loss. Nothing is trained or measured but the variances of the initial weights.

    Example: normscope theory fully_connected --gamma 0.1:3:30 --closure all --plot
    """
    from normscope.cli import sources
    from normscope.cli.batches import DEFAULT_BATCH_SIZE

    sources.check_names(model, data, None, norm)
    figure = Path("theory.svg") if plot and out is None else out
    check_figure(figure)
    samples = None if data is None else sources.load_data(data, seed)
    network = sources.load_model(model, samples, norm, option or (), seed)
    size = batch_size or DEFAULT_BATCH_SIZE
    options: dict[str, Any] = {
        "input_shape": _shape(input_shape, model, option or (), samples),
        "data": None if samples is None else _first_batch(samples, size, seed),
        "gamma": None if gamma is None else numbers(gamma, "gamma"),
        "batch_size": size,
        "parameters": parameters,
    }
    found, refused = _predictions(network, closure, options)
    basis = Basis(model, momentum, data, parameters, network)
    with draw_on(figure, partial(_draw, found)) as drawn:
        (print_as_json if as_json else print_predictions)(found, refused, drawn, basis)


def _predictions(
    network: Any, closure: str, options: dict[str, Any]
) -> tuple[list[Prediction], dict[str, str]]:
    """A prediction for each closure; of all, those that the network has none for are told."""
    from normscope.cli.output import progress
    from normscope.meanfield import CLOSURES, predict

    found, refused = [], {}
    with progress("theory") as begin:
        for name in CLOSURES if closure == "all" else (closure,):
            begin(f"closure {name}")
            try:
                found.append(predict(network, closure=name, **options))
            except InputError as error:
                if closure != "all" or name != "printed":  # the paper's recursions end earlier
                    raise _of_options(error) from error
                refused[name] = str(error)
    return found, refused


def _of_options(error: InputError) -> InputError:
    """The error in the words of the command line."""
    if "needs input_shape" not in str(error):
        return type(error)(str(error).replace("input_shape", "--input-shape"))
    return type(error)(
        "the model does not begin with a linear layer, which would tell the sizes of its input; "
        "give --input-shape, such as --input-shape 3,32,32, or --data."
    )


def _shape(
    text: str | None, model: str, options: list[str] | tuple[str, ...], samples: Any
) -> tuple[int, ...] | None:
    """The input's shape: given, that of the data, or the registered model's own."""
    if text is not None:
        try:
            return tuple(int(size) for size in text.split(","))
        except ValueError as error:
            raise InputError(f"input-shape must be sizes such as 3,32,32, got {text!r}.") from error
    if samples is not None or ":" in model:
        return None
    from normscope.models import MODELS

    given = [each.partition("=")[2] for each in options if each.startswith("input_shape=")]
    if given:
        return tuple(ast.literal_eval(given[-1]))  # the model has been built with it
    known = MODELS[model].__signature__.parameters
    return tuple(known["input_shape"].default) if "input_shape" in known else None


def _first_batch(samples: Any, batch_size: int, seed: int) -> Any:
    from normscope.cli.batches import chosen_batches

    pair = isinstance(samples, tuple) and len(samples) == 2
    size = min(batch_size, len(samples[0])) if pair else None
    return chosen_batches(samples, size, 1, seed)[0]


def _draw(found: list[Prediction], axes: Axes) -> None:
    if found[0].gamma is None or len(found) == 1:
        found[0].plot(axes)
        return
    import xarray as xr

    from normscope.plots.meanfield import closure_curves

    curves = [each.to_xarray()["lambda_max"] for each in found]
    names = xr.Variable("closure", [each.closure for each in found])
    attributes = {"reason": list(found[0].reason)}
    together = xr.concat(curves, names)
    closure_curves(xr.Dataset({"lambda_max": together}, attrs=attributes), axes)
