"""``normscope theory``: largest eigenvalue and learning rate from the architecture alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import DEFAULT_BATCH_SIZE, choose_batches
from normscope.cli.options import numbers
from normscope.cli.render import (
    check_figure,
    draw_then_print,
    print_json,
    print_note,
    print_text,
    shown_width,
)
from normscope.errors import InputError
from normscope.progress import Progress
from normscope.progress_bar import show_progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from normscope.meanfield import Prediction

_GAMMA = (
    "Scale of every norm layer: a value, a list 0.5,1,2, a range 0.1:3:30 (first:last:count) or "
    "0.1:3:30:log."
)
_CLOSURE = (
    "How the theory treats batch statistics: train (differentiated through, as training does), "
    "frozen (as constants), printed (the paper to the letter) or all three."
)
_CLOSURES = ("train", "frozen", "printed", "all")
_SHAPE = "Sizes of one sample, such as 3,32,32."
_SHAPE_DEFAULT = "those of the data or the model"
_PARAMETERS = "weights (as in the paper) or all (biases, scales and shifts too)."
Gamma = Annotated[str | None, opt.option("VALUES", _GAMMA, default="the model's own")]
Closure = Annotated[str, opt.option("CLOSURE", _CLOSURE, choices=_CLOSURES)]
InputShape = Annotated[
    str | None, opt.option("SIZES", _SHAPE, default=_SHAPE_DEFAULT, group=opt.DATA)
]
Parameters = Annotated[str, opt.option("WHICH", _PARAMETERS, choices=("weights", "all"))]
TheoryBatchSize = Annotated[
    int | None,
    opt.number("Samples in a batch.", "--batch-size", min=1, default="256", group=opt.DATA),
]
Plot = Annotated[bool, opt.flag("--plot", "Draw a figure into theory.svg.", group=opt.OUTPUT)]


@command("theory", "Predict the largest eigenvalue by mean-field theory.", own="Prediction")
def theory(
    model: opt.Model,
    gamma: Gamma = None,
    closure: Closure = "train",
    data: opt.InputData = None,
    input_shape: InputShape = None,
    norm: opt.Norm = None,
    option: opt.ModelOptions = None,
    batch_size: TheoryBatchSize = None,
    momentum: opt.Momentum = 0.0,
    parameters: Parameters = "weights",
    seed: opt.Seed = 0,
    plot: Plot = False,
    as_json: opt.Json = False,
    out: opt.Figure = None,
) -> None:
    """Predict the largest eigenvalue of the Fisher matrix at initialization by mean-field theory.

    The Fisher matrix is the curvature of half the squared error; normscope lr finds the limit for
    any loss. Only the variances of the initial weights are measured; nothing is trained.

    Example: normscope theory fully_connected --gamma 0.1:3:30 --closure all --plot
    """
    sources.check_names(model, data, None, norm)
    figure = Path("theory.svg") if plot and out is None else out
    check_figure(figure)
    samples = None if data is None else sources.load_data(data, seed)
    network = sources.load_model(model, samples, norm, option or (), seed)
    size = batch_size or DEFAULT_BATCH_SIZE
    options: dict[str, Any] = {
        "input_shape": _input_shape(input_shape, model, option or (), samples),
        "data": None if samples is None else _first_batch(samples, size, seed),
        "gamma": None if gamma is None else numbers(gamma, "gamma"),
        "batch_size": size,
        "parameters": parameters,
    }
    found, refused = _predict(network, closure, options)
    with draw_then_print(figure, partial(_draw, found)) as drawn:
        if as_json:
            answers = [_to_dict(each, momentum) for each in found]
            answer = {"model": model, "momentum": momentum, "closures": answers}
            path = None if drawn is None else str(drawn)
            print_json({**answer, "refused": refused, "figure": path})
            return
        _print_predictions(found, refused, momentum)
        _print_basis(data, parameters)
        print_note(_other_loss(found[0], momentum, network))
        measured = f" --data {data} measures" if data else ", with --data, measures"
        print_note(f"normscope lr {model}{measured} the limit for a loss and data.")
        if drawn is not None:
            print(f"Figure: {drawn}")


def _predict(
    network: Any, closure: str, options: dict[str, Any]
) -> tuple[list[Prediction], dict[str, str]]:
    """Return a prediction for each closure; of all three, also why one has none."""
    from normscope.meanfield import CLOSURES, predict

    found, refused = [], {}
    with show_progress("theory") as show:
        for name in CLOSURES if closure == "all" else (closure,):
            show(Progress(f"closure {name}"))
            try:
                found.append(predict(network, closure=name, **options))
            except InputError as error:
                if closure != "all" or name != "printed":  # the paper covers fewer architectures
                    raise _name_options(error) from error
                refused[name] = str(error)
    return found, refused


def _name_options(error: InputError) -> InputError:
    """Return the error with the option in place of the argument."""
    if "needs input_shape" not in str(error):
        return type(error)(str(error).replace("input_shape", "--input-shape"))
    return type(error)(
        "the model does not begin with a linear layer, which would give the size of its input; "
        "give --input-shape, such as --input-shape 3,32,32, or --data."
    )


def _input_shape(
    text: str | None, model: str, options: Sequence[str], samples: Any
) -> tuple[int, ...] | None:
    """Return the shape of a sample: as given, or the registered model's; None if data has it."""
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
    pair = isinstance(samples, tuple) and len(samples) == 2
    size = min(batch_size, len(samples[0])) if pair else None
    return choose_batches(samples, size, 1, seed)[0]


def _draw(found: list[Prediction], axes: Axes) -> None:
    if found[0].gamma is None or len(found) == 1:
        found[0].plot(axes)
        return
    import xarray as xr

    from normscope.plots.meanfield import closure_curves

    curves = [each.to_xarray()["lambda_max"] for each in found]
    names = xr.Variable("closure", [each.closure for each in found])
    attributes = {"reason": list(found[0].reason)}
    closure_curves(xr.Dataset({"lambda_max": xr.concat(curves, names)}, attrs=attributes), axes)


def _print_predictions(found: list[Prediction], refused: dict[str, str], momentum: float) -> None:
    """Print a table for each closure, and why a closure has none."""
    for each in found:
        print_text(each.text(shown_width()))
        if momentum and each.gamma is None and each.lambda_max is not None:
            rate = each.max_learning_rate(momentum)
            print(f"with momentum {momentum:g}: learning rates below {rate:.4g}")
        print()
    for name, reason in refused.items():
        print_note(f"{name}: {reason}")


def _print_basis(data: str | None, parameters: str) -> None:
    """Print what the numbers are of."""
    inputs = f"inputs of {data}" if data else "iid normal inputs (--data: yours)"
    counted = "weights alone (--parameters all: with biases, scales and shifts)"
    if parameters == "all":
        counted = "all parameters"
    print_note(
        "Predicted: the Fisher matrix, which is the curvature of half the squared error; initial "
        f"weights, {inputs}, {counted}."
    )


def _other_loss(prediction: Prediction, momentum: float, network: nn.Module) -> str:
    """Return by how much the numbers change for the cross-entropy."""
    from normscope.meanfield.output_curvature import output_curvature

    sizes = [getattr(module, "out_features", 0) for module in network.modules()]
    outputs = next((int(size) for size in reversed(sizes) if size), 0)  # of the last linear layer
    matrix = "With cross_entropy the Gauss-Newton matrix sets the limit"
    if prediction.gamma is not None or prediction.lambda_max is None or outputs < 2:
        return f"{matrix}; its eigenvalues are smaller, by the curvature of the softmax."
    factor = float(output_curvature("cross_entropy", prediction, outputs))
    rate = prediction.max_learning_rate(momentum, factor)
    return (
        f"{matrix}. With {outputs} outputs its eigenvalues are about {factor:.3g} times these: "
        f"learning rates below {rate:.4g} (closure {prediction.closure})."
    )


def _to_dict(prediction: Prediction, momentum: float) -> dict[str, Any]:
    rate: Any = prediction.max_learning_rate(momentum)
    plain = rate.tolist() if hasattr(rate, "tolist") else rate
    return {**prediction.to_dict(), "max_learning_rate": plain}
