"""Predict the largest eigenvalue of the Fisher matrix of a model or a specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.interrupts import interrupt_safe
from normscope.meanfield.assumptions import check_finite
from normscope.meanfield.field import Setting
from normscope.meanfield.fisher import FisherEstimate, estimate
from normscope.meanfield.graph import Graph, Input
from normscope.meanfield.integrals import Array
from normscope.meanfield.printed import printed_estimate
from normscope.meanfield.reading import read
from normscope.meanfield.result import NOTHING, LayerRow, Prediction
from normscope.problem.sharded import gather_shards
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from torch import nn

CLOSURES = ("train", "frozen", "printed")
"""Forms of the theory: through batch statistics, with constant statistics, as printed."""
PARAMETERS = ("weights", "all")
DEFAULT_BATCH_SIZE = 256
_PIECE = 8  # values of gamma at once where kernels of all positions are held
_MOST_BATCHES = 20  # of a loader, to measure moments on
_MOST_SAMPLES = 512  # to count the directions along which data vary
_FEW_DIMENSIONS = 30
_HEAD_SHARE = 0.9  # of the largest eigenvalue, above which the last layer alone explains it
# share of the mean direction's eigenvalue from which the spread of samples is mentioned: a residual
# MLP of width 400 with LayerNorm has 0.36 and is 2.3 times above the prediction at 128 samples
_NOTABLE_BULK = 0.1
_NO_DIRECTION = (
    "no layer has a mean gradient over the data (an odd activation without a shift, or nothing "
    "that singles out a direction), so the bound is zero and says nothing; what remains falls "
    "with the batch size. normscope.max_learning_rate measures it."
)
_FEWEST_SAMPLES = 4  # for which the mean inverse variance of a batch exists
_FEW_SAMPLES = (
    "gradients below the statistics of a batch of {:g} have no finite mean square; the theory "
    "needs four samples or more."
)

T = TypeVar("T", FisherEstimate, LayerRow)


@interrupt_safe
@gather_shards
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
    r"""Predict the top eigenvalue of the Fisher matrix at initialization from the architecture.

    The Fisher matrix is that of half the squared error, J'J / m over all m samples and outputs.
    Closure "train" differentiates through batch statistics, as training does; "frozen" treats them
    as constants; "printed" is the paper to the letter.

    Reference: wei2018, Claim 3.1, and docs/research/mean_field.md for what is corrected.

    Args:
        model: a network of supported layers, or a graph made by
            :func:`normscope.meanfield.fully_connected_specification` and the like.
        input_shape: of one sample, without the batch; None to infer it from the data or from the
            first layer, if that is linear.
        closure: train, frozen or printed.
        data: inputs, a pair (inputs, targets), a list of such batches or a DataLoader (of which 20
            are used). Their second moments replace those of iid normal inputs.
        gamma: scale of every norm layer instead of the model's; an array for a sweep.
        batch_size: samples in a batch, for the explosive regime; None for that of the data, or 256.
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
        NoClosureError: if the model cannot be read, or is outside the assumptions of the theory;
            the message names the module.
        InputError: if weights or data are not finite.

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
    values = _gamma(gamma)
    check_finite(graph.with_gamma(values))
    size = _batch_size(first if batch_size is None else batch_size)
    moments, every = _moments(graph, samples), parameters == "all"
    with np.errstate(divide="ignore", invalid="ignore"):  # what is not a number has no verdict
        found = in_pieces(
            lambda values: _estimate(graph.with_gamma(values), moments, closure, size, every),
            values,
            _PIECE if graph.needs_positions else None,
        )
    found = replace(found, notes=(*found.notes, *_data_notes(samples)))
    return _prediction(found, closure, size, gamma)


def _data_notes(samples: Array | None) -> tuple[str, ...]:
    """Return a note if few principal components carry the variance of the data."""
    if samples is None:
        return ()
    flat = samples[:_MOST_SAMPLES].reshape(min(len(samples), _MOST_SAMPLES), -1)
    centred = flat - flat.mean(0)
    products = centred @ centred.T
    total = float(np.square(products).sum())
    dimensions = float(np.trace(products)) ** 2 / total if total > 0 else 0.0
    if dimensions >= min(_FEW_DIMENSIONS, len(flat) / 2):
        return ()
    return (
        f"the data vary along about {dimensions:.2g} directions; the theory knows their mean and "
        "single samples, so lambda_max may be larger by a factor of up to 3",
    )


def _estimate(graph: Graph, data: Input, closure: str, size: float, every: bool) -> FisherEstimate:
    if closure == "printed":
        return printed_estimate(graph, data)
    resolve = graph.needs_positions or (data.pair is not None and len(data.shape) > 1)
    setting = Setting(closure == "train", size, resolve)
    return estimate(graph, data, setting, every)


def _prediction(found: FisherEstimate, closure: str, size: float, gamma: Any) -> Prediction:
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
    """Return a row with numbers, or with arrays over the sweep."""
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
    """Return the inputs of all batches, and the samples in the first."""
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
    inputs = np.asarray(inputs, dtype=float)
    if not np.isfinite(inputs).all():
        raise InputError("data needs finite inputs, got NaN or infinity; remove those samples.")
    return inputs


def _no_inputs(data: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        "data must be inputs, a pair (inputs, targets), a list of such batches or a DataLoader, "
        f"got {type(data).__name__}."
    )


def _moments(graph: Graph, samples: Array | None) -> Input:
    """Return the second moments of the samples; products of two different samples without bias."""
    if samples is None:
        return Input(graph.channels_first)
    samples = np.moveaxis(samples, graph.channel + 1, 1)
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
    return Input(graph.channels_first, own, pair)


def in_pieces(
    run: Callable[[Array | None], FisherEstimate], values: Array | None, size: int | None
) -> FisherEstimate:
    """Return an estimate over a sweep, a few values at a time so that kernels of resolved maps fit.

    Args:
        run: makes the estimate of some values.
        values: of the sweep; None without one.
        size: number of values at a time; None for all at once.

    Returns:
        The estimate over all values.
    """
    if values is None or size is None or len(values) <= size:
        return run(values)
    pieces = [values[begin : begin + size] for begin in range(0, len(values), size)]
    lengths = [len(piece) for piece in pieces]
    parts = [run(piece) for piece in pieces]
    rows = zip(*(part.layers for part in parts), strict=True)
    layers = tuple(_joined(each, lengths) for each in rows)
    return replace(_joined(parts, lengths), layers=layers)


def _joined(parts: Sequence[T], lengths: Sequence[int]) -> T:
    """Concatenate the arrays of all parts."""
    arrays: dict[str, Any] = {}
    for each in fields(parts[0]):
        values = [getattr(part, each.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            whole = [np.broadcast_to(v, (n,)) for v, n in zip(values, lengths, strict=True)]
            arrays[each.name] = np.concatenate(whole)
    return replace(parts[0], **arrays)


class Verdict(NamedTuple):
    """The largest eigenvalue, and which part of the theory gives it.

    Attributes:
        regime: head, bound, explosive or undetermined.
        largest: the eigenvalue, None if undetermined.
        reason: in words.
    """

    regime: str
    largest: float | None
    reason: str


def verdicts(found: FisherEstimate, closure: str, batch_size: float, count: int) -> list[Verdict]:
    """Return the regime of every setting of a sweep.

    Args:
        found: the estimate of the closure.
        closure: its name.
        batch_size: samples in a batch.
        count: number of settings.

    Returns:
        One verdict for each.
    """
    growths = [np.broadcast_to(row.growth, (count,)) for row in found.layers[:-1]]
    growth = np.median(growths, axis=0) if growths else np.ones(count)
    parts = (found.lower_bound, found.head, found.mean_direction, found.bulk, found.upper_bound)
    columns = [np.broadcast_to(part, (count,)).tolist() for part in (*parts, growth)]
    return [_verdict(closure, batch_size, each) for each in zip(*columns, strict=True)]


def _verdict(closure: str, batch_size: float, values: tuple[float, ...]) -> Verdict:
    bound, head, direction, bulk, upper, growth = values
    unknown = any(map(math.isnan, (direction, bulk, upper)))  # products of zero and infinity
    if (math.isinf(upper) or unknown) and batch_size < _FEWEST_SAMPLES:
        return Verdict("undetermined", None, _FEW_SAMPLES.format(batch_size))
    if unknown or not math.isfinite(bound) or bound <= NOTHING * upper:
        return Verdict("undetermined", None, _NO_DIRECTION)
    if closure == "printed":
        return Verdict("bound", bound, "the sum of all layers' terms, as printed.")
    if bulk > direction:
        reason = (
            f"squared gradients grow by about {growth:.2f} per layer towards the input, and a "
            f"single sample's {bulk:.4g} in a batch of {batch_size:g} exceeds the mean direction's "
            f"{direction:.4g}; the lower bound is not tight."
        )
        return Verdict("explosive", bulk, reason)
    share = head / direction
    if share >= _HEAD_SHARE:
        reason = (
            f"the last layer's mean gradient alone makes up {share:.0%} of lambda_max (the shares "
            "of the layers are of the lower bound per output); a single sample reaches "
            f"{bulk:.3g} in a batch of {batch_size:g}."
        )
        return Verdict("head", direction, reason)
    reason = (
        f"mean gradients of all layers add up, {share:.0%} of lambda_max from the last one (the "
        "shares of the layers are of the lower bound per output)."
    )
    if bulk >= _NOTABLE_BULK * direction:
        reason += (
            f" A single sample reaches {bulk:.3g} in a batch of {batch_size:g}: lambda_max can be "
            "several times larger; measure it by top_eigenvalue."
        )
    return Verdict("bound", direction, reason)
