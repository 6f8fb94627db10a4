"""The public verb: from a model or a specification to a prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.meanfield.fisher import Estimate, estimate
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.graph import Graph, Input
from normscope.meanfield.layer_row import LayerRow
from normscope.meanfield.operations import Setting
from normscope.meanfield.pieces import in_pieces
from normscope.meanfield.prediction import Prediction
from normscope.meanfield.printed import printed_estimate
from normscope.meanfield.verdict import verdicts
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CLOSURES", "predict"]

CLOSURES = ("train", "frozen", "printed")
"""The forms of the theory: as training sees it, with constant statistics, as printed."""
PARAMETERS = ("weights", "all")
DEFAULT_BATCH_SIZE = 256
_PIECE = 8  # values of gamma at once where kernels of all positions are held
_MOST_BATCHES = 20  # of a loader, to measure moments on


def predict(
    model: nn.Module | Graph,
    input_shape: Sequence[int] | None = None,
    closure: str = "train",
    data: Any = None,
    *,
    gamma: float | Sequence[float] | Array | None = None,
    batch_size: float | None = None,
    parameters: str = "weights",
    weight_variance: float | None = None,
    bias_variance: float | None = None,
    activations: dict[type, Callable[[Array], Array]] | None = None,
) -> Prediction:
    r"""Largest eigenvalue of the Fisher matrix at initialization, from the architecture alone.

    The Fisher matrix is that of half the squared error, J'J / m over all m samples and outputs.
    Closures: "train" differentiates through batch statistics, as training does; "frozen" takes
    them as constants; "printed" is the paper to the letter.

    Reference: wei2018, Claim 3.1, and docs/meanfield.md for what is corrected.

    Args:
        model: a network of supported layers, or a graph made by
            :func:`normscope.meanfield.fully_connected_specification` and the like.
        input_shape: of one sample, without the batch; None to take it from the data or from a
            first linear layer.
        closure: train, frozen or printed.
        data: inputs, a pair (inputs, targets), a list of such batches or a DataLoader (of which 20
            are taken), whose second moments replace those of iid normal inputs.
        gamma: scale of every norm layer instead of the model's own; an array for a sweep.
        batch_size: samples in a batch, for the explosive branch; None for that of the data, or 256.
        parameters: "weights" of linear layers and convolutions, as in the paper; or "all", with
            biases, scales and shifts.
        weight_variance: variance of every weight times its fan in, instead of the measured ones.
        bias_variance: variance of every bias, instead of the measured ones.
        activations: further activation modules by type, each with its function on numpy arrays,
            which must be smooth.

    Returns:
        The prediction.

    Raises:
        UnknownNameError: if there is no such closure or choice of parameters.

    >>> from normscope.meanfield import fully_connected_specification
    >>> round(predict(fully_connected_specification()).lambda_max, 2)  # 1000 / (2 pi)
    159.15
    """
    for kind, name, choices in (
        ("closure", closure, CLOSURES),
        ("choice of parameters", parameters, PARAMETERS),
    ):
        if name not in choices:
            raise unknown_name(kind, name, choices)
    samples, first = (None, DEFAULT_BATCH_SIZE) if data is None else _inputs_of(data)
    graph = _graph_of(model, _shape(input_shape, samples), activations or {})
    graph = graph.with_variances(weight_variance, bias_variance)
    size = _batch_size(first if batch_size is None else batch_size)
    moments, every = _moments(graph, samples), parameters == "all"
    found = in_pieces(
        lambda values: _estimate(graph.with_gamma(values), moments, closure, size, every),
        _gamma(gamma),
        _PIECE if graph.needs_positions else None,
    )
    return _prediction(found, closure, size, gamma)


def _estimate(graph: Graph, data: Input, closure: str, size: float, every: bool) -> Estimate:
    if closure == "printed":
        return printed_estimate(graph, data)
    resolve = graph.needs_positions or (data.pair is not None and len(data.shape) > 1)
    setting = Setting(closure == "train", size, resolve)
    return estimate(graph, data, setting, every)


def _prediction(found: Estimate, closure: str, size: float, gamma: Any) -> Prediction:
    sweep = None if gamma is None or np.ndim(gamma) == 0 else np.asarray(gamma, dtype=float)
    count = 1 if sweep is None else len(sweep)
    answers = verdicts(found, closure, size, count)
    rows = tuple(_shaped(row, None if sweep is None else count) for row in found.layers)
    known = np.array([each.largest is not None for each in answers])
    bounds = np.where(known, found.lower_bound, 0.0)
    if sweep is None:
        (only,) = answers
        answer = (only.largest, float(bounds[0]), only.regime, only.reason)
        return Prediction(*answer, rows, closure, size, None, found.notes)
    largest = np.array([np.nan if each.largest is None else each.largest for each in answers])
    regimes = tuple(each.regime for each in answers)
    reasons = tuple(each.reason for each in answers)
    return Prediction(largest, bounds, regimes, reasons, rows, closure, size, sweep, found.notes)


def _shaped(row: LayerRow, count: int | None) -> LayerRow:
    """A row with numbers, or with arrays over the sweep."""
    values: dict[str, Any] = {
        name: (float(value[0]) if count is None else np.broadcast_to(value, (count,)).copy())
        if isinstance(value, np.ndarray)
        else value
        for name, value in vars(row).items()
    }
    return LayerRow(**values)


def _graph_of(model: Any, shape: tuple[int, ...] | None, activations: dict[type, Any]) -> Graph:
    if isinstance(model, Graph):
        if shape is not None and shape != model.shape:
            raise ShapeError(
                f"the specification is for inputs of {model.shape}, got {shape}; leave input_shape "
                "out, or make another specification."
            )
        return model
    from normscope.meanfield.reading import read

    return read(model, shape, activations)


def _shape(given: Sequence[int] | None, samples: Array | None) -> tuple[int, ...] | None:
    if given is not None:
        shape = tuple(int(size) for size in given)
        if not shape or min(shape) < 1:
            raise ShapeError(f"input_shape needs sizes of at least 1, got {tuple(given)}.")
        return shape
    return None if samples is None else samples.shape[1:]


def _gamma(given: Any) -> Array | None:
    if given is None:
        return None
    gamma = np.atleast_1d(np.asarray(given, dtype=float))
    if gamma.ndim != 1 or gamma.size == 0 or not np.all(np.isfinite(gamma) & (gamma > 0)):
        raise InputError(f"gamma must be a number above 0, or a row of them, got {given!r}.")
    return gamma


def _batch_size(size: float) -> float:
    if not size >= 1:
        raise InputError(f"batch_size must be at least 1, got {size!r}.")
    return float(size)


def _inputs_of(data: Any) -> tuple[Array, int]:
    """The inputs of all batches, and the samples in the first."""
    batches = [data]
    if not hasattr(data, "shape") and not (isinstance(data, tuple) and len(data) == 2):
        if not isinstance(data, Iterable) or isinstance(data, (str, dict)):
            raise _no_inputs(data)
        batches = [*islice(data, _MOST_BATCHES)]
    arrays = [_array(batch, data) for batch in batches]
    if not arrays or arrays[0].ndim < 2 or sum(map(len, arrays)) < 2:
        shapes = [array.shape for array in arrays[:1]]
        raise ShapeError(f"data needs at least two samples of one feature or more, got {shapes}.")
    return np.concatenate(arrays), len(arrays[0])


def _array(batch: Any, data: Any) -> Array:
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    if hasattr(inputs, "detach"):
        inputs = inputs.detach().cpu().double().numpy()
    if not isinstance(inputs, np.ndarray):
        raise _no_inputs(data)
    return np.asarray(inputs, dtype=float)


def _no_inputs(data: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        "data must be inputs, a pair (inputs, targets), a list of such batches or a DataLoader, "
        f"got {type(data).__name__}."
    )


def _moments(graph: Graph, samples: Array | None) -> Input:
    """Second moments of the samples; products of two samples without bias by their own squares."""
    if samples is None:
        return Input(graph.shape)
    count, channels = samples.shape[:2]
    if len(graph.shape) == 1:
        own = np.array([[np.square(samples).mean()]])
        mean = np.array([[np.square(samples.mean(0)).mean()]])
    else:
        flat = samples.reshape(count, channels, -1)
        own = np.einsum("ncp,ncr->pr", flat, flat, optimize=True) / (count * channels)
        centre = flat.mean(0)
        mean = centre.T @ centre / channels
    pair = (count * mean - own) / (count - 1)
    return Input(graph.shape, own, pair)
