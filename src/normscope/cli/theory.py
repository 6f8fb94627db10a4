"""``normscope theory``: largest eigenvalue and learning rate from the architecture alone."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.figures import check_figure, draw_on
from normscope.cli.names import completion_of
from normscope.cli.options import Figure, Json, Model, ModelOptions, Momentum, Norm, Seed
from normscope.cli.values import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from normscope.meanfield import Prediction

Gamma = Annotated[
    str | None,
    typer.Option(
        metavar="VALUES",
        help="Scale of every norm layer: 1, 0.5,1,2, 0.1:3:30 (30 values from 0.1 to 3), or "
        "0.1:3:30:log.",
        show_default="the model's own",
    ),
]
Closure = Annotated[
    str,
    typer.Option(
        metavar="CLOSURE",
        help="train, frozen, printed or all.",
        autocompletion=completion_of("train", "frozen", "printed", "all"),
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="A data set, as elsewhere, to measure the inputs' moments on.",
        show_default="iid normal inputs",
        autocompletion=completion_of(kind="data"),
    ),
]
InputShape = Annotated[
    str | None, typer.Option(metavar="SIZES", help="Of one sample, such as 3,32,32.")
]
BatchSize = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Samples in a batch.")]
Parameters = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="weights, as in the paper, or all.",
        autocompletion=completion_of("weights", "all"),
    ),
]
Plot = Annotated[bool, typer.Option("--plot", help="Draw a figure into theory.svg.")]


def theory(
    model: Model,
    gamma: Gamma = None,
    closure: Closure = "train",
    data: Data = None,
    input_shape: InputShape = None,
    norm: Norm = None,
    option: ModelOptions = None,
    batch_size: BatchSize = 256,
    momentum: Momentum = 0.0,
    parameters: Parameters = "weights",
    seed: Seed = 0,
    plot: Plot = False,
    as_json: Json = False,
    out: Figure = None,
) -> None:
    """Largest eigenvalue of the Fisher matrix at initialization, by mean-field theory.

    Nothing is trained or measured but the variances of the initial weights.

    Example: normscope theory fully_connected --gamma 0.1:3:30 --closure all --plot
    """
    from normscope.cli import sources

    figure = Path("theory.svg") if plot and out is None else out
    check_figure(figure)
    values = None if gamma is None else numbers(gamma, "gamma")
    samples = None if data is None else sources.load_data(data, seed)
    network = sources.load_model(model, samples, norm, option or (), seed)
    options: dict[str, Any] = {
        "input_shape": _shape(input_shape, model, option or (), samples),
        "data": None if samples is None else _first_batch(samples, batch_size, seed),
        "gamma": values,
        "batch_size": batch_size,
        "parameters": parameters,
    }
    found, refused = _predictions(network, closure, options)
    draw_on(figure, partial(_draw, found))
    _print(found, refused, figure, {"model": model, "momentum": momentum}, as_json)


def _predictions(
    network: Any, closure: str, options: dict[str, Any]
) -> tuple[list[Prediction], dict[str, str]]:
    """A prediction for each closure; of all, those that the network has none for are told."""
    from normscope.errors import InputError
    from normscope.meanfield import CLOSURES, predict

    if closure != "all":
        return [predict(network, closure=closure, **options)], {}
    found, refused = [], {}
    for name in CLOSURES:
        try:
            found.append(predict(network, closure=name, **options))
        except InputError as error:
            if name != "printed":  # only the paper's recursions end where others go on
                raise
            refused[name] = str(error)
    return found, refused


def _shape(
    text: str | None, model: str, options: list[str] | tuple[str, ...], samples: Any
) -> tuple[int, ...] | None:
    """The input's shape: given, that of the data, or the registered model's own."""
    from normscope.errors import InputError

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
    from normscope.cli.sources import chosen_batches

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
    closure_curves(xr.Dataset({"lambda_max": xr.concat(curves, names)}), axes)


def _print(
    found: list[Prediction],
    refused: dict[str, str],
    figure: Path | None,
    source: dict[str, Any],
    as_json: bool,
) -> None:
    from normscope.cli.output import print_json

    momentum = source["momentum"]
    if as_json:
        answers = [_plain(each, momentum) for each in found]
        path = None if figure is None else str(figure)
        print_json({**source, "closures": answers, "refused": refused, "figure": path})
        return
    for each in found:
        typer.echo(str(each))
        if momentum and each.gamma is None and each.lambda_max is not None:
            rate = each.max_learning_rate(momentum)
            typer.echo(f"with momentum {momentum:g}: learning rates below {rate:.4g}")
        typer.echo("")
    for name, reason in refused.items():
        typer.echo(f"{name}: {reason}")
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _plain(prediction: Prediction, momentum: float) -> dict[str, Any]:
    rate: Any = prediction.max_learning_rate(momentum)
    plain = rate.tolist() if hasattr(rate, "tolist") else rate
    return {**prediction.to_dict(), "max_learning_rate": plain}
