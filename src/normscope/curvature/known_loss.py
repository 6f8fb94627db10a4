"""Losses whose derivatives in the network's output are known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from normscope.losses import cross_entropy, squared_error

__all__ = ["KnownLoss", "is_cross_entropy", "is_squared_error", "is_unweighted", "known_loss"]


@dataclass(frozen=True)
class KnownLoss:
    r"""A loss that is a sum over samples of one of two kinds.

    .. math:: L = -c \sum_i \log \mathrm{softmax}(f_i)_{y_i} \quad \text{or} \quad
        L = \frac{c}{2} \sum_i \lVert f_i - y_i \rVert^2

    Args:
        kind: which of the two.
        scale: c.
        smoothing: share of the label that is spread over all classes; the Hessian has none of it.
    """

    kind: Literal["cross_entropy", "squares"]
    scale: float
    smoothing: float = 0.0


def known_loss(loss: object, output: Tensor, target: Tensor) -> KnownLoss | None:
    """What is known of a loss at an output, or None.

    Known are cross-entropy with class labels and squared errors, as functions or modules of torch
    or from `normscope.losses`, with the default weights and no ignored label.

    Args:
        loss: called as ``loss(output, target)``.
        output: the model's output.
        target: the targets.

    Returns:
        The loss's kind and scale; None if it must be differentiated.

    >>> import torch
    >>> known_loss(nn.MSELoss(), torch.zeros(2, 3), torch.zeros(2, 3)).scale  # of six squares
    0.3333333333333333
    """
    if is_cross_entropy(loss) and is_unweighted(loss) and _labels_are_plain(output, target):
        scale = 1.0 if _reduction(loss) == "sum" else 1 / target.numel()
        return KnownLoss("cross_entropy", scale, float(getattr(loss, "label_smoothing", 0.0)))
    if loss is squared_error:
        return KnownLoss("squares", 1 / len(output))
    if is_squared_error(loss) and output.shape == target.shape:
        return KnownLoss("squares", 2.0 if _reduction(loss) == "sum" else 2 / output.numel())
    return None


def _reduction(loss: Any) -> str:
    return str(getattr(loss, "reduction", "mean"))


def is_cross_entropy(loss: object) -> bool:
    """Whether a loss is the cross-entropy of a softmax, with any weights and any reduction.

    Args:
        loss: called as ``loss(output, target)``.

    Returns:
        True for the one of `normscope.losses` and torch's function and module, but not for a
        subclass, which may compute something else.

    >>> is_cross_entropy(functional.cross_entropy), is_cross_entropy(nn.NLLLoss())
    (True, False)
    """
    return _is_one_of(loss, nn.CrossEntropyLoss, cross_entropy, functional.cross_entropy)


def is_squared_error(loss: object) -> bool:
    """Whether a loss is a squared error, with any reduction.

    Args:
        loss: called as ``loss(output, target)``.

    Returns:
        True for the one of `normscope.losses` and torch's function and module, but not for a
        subclass, which may compute something else.

    >>> is_squared_error(nn.MSELoss()), is_squared_error(nn.L1Loss())
    (True, False)
    """
    return _is_one_of(loss, nn.MSELoss, squared_error, functional.mse_loss)


def _is_one_of(loss: object, module: type[nn.Module], *functions: object) -> bool:
    """Whether a loss is such a module, and no subclass of it, or one of the functions."""
    return type(loss) is module or any(loss is function for function in functions)


def is_unweighted(loss: Any) -> bool:
    """Whether a loss counts every label alike; labels below zero are not looked for.

    Args:
        loss: called as ``loss(output, target)``.

    Returns:
        False for a module with weights of the classes, or one that ignores a class.
    """
    return getattr(loss, "weight", None) is None and getattr(loss, "ignore_index", -100) < 0


def _labels_are_plain(output: Tensor, target: Tensor) -> bool:
    """Labels, one per sample and position, none of which may stand for "ignored"."""
    if target.is_floating_point() or output.dim() < 2:
        return False
    return bool((target >= 0).all() and (target < output.shape[1]).all())
