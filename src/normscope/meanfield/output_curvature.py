"""Curvature of the loss with respect to the outputs of a network at initialization.

The theory is for half the squared error, whose second derivative by the outputs is the identity.
That of the cross-entropy depends on the softmax of the initial outputs.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.stats import qmc

from normscope.errors import InputError
from normscope.meanfield.integrals import Array
from normscope.meanfield.result import Prediction

LOSSES = ("squared_error", "cross_entropy")
"""The losses whose curvature in the outputs is known."""
_POINTS = (128, 256)  # for the shared and the individual part
_FEWER = (8, 64)  # for many classes, whose sums fluctuate less
_MANY = 50


def output_curvature(loss: str, prediction: Prediction, classes: int) -> float | Array:
    r"""Return the factor by which a loss's curvature differs from that of half the squared error.

    .. math:: \lambda_{\max}^{\text{loss}} \approx h \, \lambda_{\max}

    Args:
        loss: squared_error or cross_entropy.
        prediction: of the network; its last row has the moments of the outputs.
        classes: number of outputs.

    Returns:
        1 for half the squared error; for the cross-entropy `softmax_curvature`, over a sweep one
        for each gamma.

    Raises:
        InputError: if the curvature of the loss is not known.
    """
    if loss not in LOSSES:
        raise InputError(f"the theory knows the losses {' and '.join(LOSSES)}, got {loss!r}.")
    if loss == "squared_error":
        return 1.0
    head = prediction.layers[-1]
    return softmax_curvature(head.second_moment, head.second_moment_pair, classes)


def softmax_curvature(
    second_moment: float | Array, pair: float | Array, classes: int
) -> float | Array:
    r"""Return the largest second derivative of the cross-entropy by the outputs, on average.

    Initial outputs are normal: the sum of a part that all samples share, of variance ``pair``, and
    an individual part. Where the mean feature gives the top eigenvalue of the Fisher matrix, the
    cross-entropy multiplies it by

    .. math:: h = E_{\text{shared}}\, \lambda_{\max}\left(
        E_x[\operatorname{diag} p(x) - p(x) p(x)^\top]\right)

    with the softmax probabilities p: 1 / classes for zero outputs, more if the outputs prefer the
    same class for all samples, less if they are confident but differ between samples. The
    individual parts are assumed independent of the features; docs/research/sweeps.md has the
    measured error. The means are over 128 and 256 points of fixed Sobol sequences (fewer for many
    classes), accurate to 2 %, or to 7 % if samples share nothing.

    Args:
        second_moment: of an output; a number or one for each setting.
        pair: mean product of an output for two samples.
        classes: number of outputs.

    Returns:
        The curvature, of the shape of the moments; NaN where these are not finite.

    Raises:
        InputError: if there are fewer than two classes.

    >>> round(float(softmax_curvature(0.0, 0.0, 10)), 6)  # all classes equally likely
    0.1
    """
    if classes < 2:
        raise InputError(f"a softmax needs two classes or more, got {classes}.")
    own, shared = np.broadcast_arrays(
        np.asarray(second_moment, dtype=float), np.asarray(pair, dtype=float)
    )
    found = [
        _curvature(float(q), float(q_xy), classes)
        for q, q_xy in zip(own.ravel(), shared.ravel(), strict=True)
    ]
    return np.reshape(found, own.shape) if own.ndim else found[0]


def _curvature(second_moment: float, pair: float, classes: int) -> float:
    if not math.isfinite(second_moment + pair):
        return math.nan
    shared = min(max(pair, 0.0), second_moment)
    common, own = _points(classes)
    scores = math.sqrt(shared) * common[:, None] + math.sqrt(second_moment - shared) * own
    likely = np.exp(scores - scores.max(-1, keepdims=True))
    likely /= likely.sum(-1, keepdims=True)
    bent = -(likely.swapaxes(1, 2) @ likely) / len(own)
    diagonal = np.arange(classes)
    bent[:, diagonal, diagonal] += likely.mean(1)
    return float(np.linalg.eigvalsh(bent)[:, -1].mean())


@lru_cache(maxsize=8)
def _points(classes: int) -> tuple[Array, Array]:
    """Return normal points for the shared and the individual part."""
    counts = _POINTS if classes <= _MANY else _FEWER
    first, second = (
        qmc.MultivariateNormalQMC(np.zeros(classes), rng=np.random.default_rng(seed)).random(count)
        for seed, count in enumerate(counts)
    )
    return first, second
