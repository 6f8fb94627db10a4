"""How much the loss bends in the outputs of a network that has learned nothing yet.

The theory is about half the squared error, whose second derivative by the outputs is the identity.
The cross-entropy's is that of the softmax at the initial outputs.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.stats import qmc

from normscope.errors import InputError
from normscope.meanfield.integrals import Array
from normscope.meanfield.prediction import Prediction

LOSSES = ("squared_error", "cross_entropy")
"""The losses whose curvature in the outputs is known."""
_POINTS = (128, 256)  # of the shared part and of the samples' own
_FEWER = (8, 64)  # for many classes, whose sums fluctuate less
_MANY = 50


def output_curvature(loss: str, prediction: Prediction, classes: int) -> float | Array:
    r"""The factor by which a loss's curvature differs from that of half the squared error.

    .. math:: \lambda_{\max}^{\text{loss}} \approx h \, \lambda_{\max}

    Args:
        loss: squared_error or cross_entropy.
        prediction: of the network; the last line of its table has the moments of the outputs.
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
    r"""Largest second derivative of the cross-entropy by the outputs, averaged over the samples.

    Initial outputs are normal: a part that all samples share, of variance ``pair``, and one of
    each sample's own. Where the mean feature makes the top of the Fisher matrix, the cross-entropy
    multiplies it by

    .. math:: h = E_{\text{shared}}\, \lambda_{\max}\left(
        E_x[\operatorname{diag} p(x) - p(x) p(x)^\top]\right)

    with the probabilities p of the softmax: 1 / classes for outputs that vanish, more for outputs
    that prefer the same class for all samples, less for outputs that are sure, sample by sample.
    The samples' own parts are taken as independent of their features; docs/sweeps.md has the
    measured error. The means are over 128 and 256 points of fixed Sobol sequences (fewer for many
    classes): good to 2 %, to 7 % where samples share nothing.

    Args:
        second_moment: of an output; a number or one for each setting.
        pair: mean product of an output for two samples.
        classes: number of outputs.

    Returns:
        The curvature, of the shape of the moments; not-a-number where these are not finite.

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
    """Normal points of the shared part and of a sample's own."""
    counts = _POINTS if classes <= _MANY else _FEWER
    first, second = (
        qmc.MultivariateNormalQMC(np.zeros(classes), rng=np.random.default_rng(seed)).random(count)
        for seed, count in enumerate(counts)
    )
    return first, second
