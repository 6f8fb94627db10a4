"""Losses that are recognized: closed forms, and how batches combine into the loss over all data.

A loss is recognized only if it computes what torch or normscope defined. With hooks, a replaced
``forward`` or a replaced function of torch it is a custom loss like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import loss as torch_losses

from normscope.errors import InputError
from normscope.problem.batch import tensors_of
from normscope.problem.hooks import is_unchanged
from normscope.problem.loss import Loss, cross_entropy, squared_error

_MEANS = (  # of all entries, unless their reduction is another
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits),
)
_BY_LABEL = {"reduction": "mean", "weight": None, "ignore_index": -100}  # torch's defaults

IGNORED_LABELS = (
    "the data has labels of -100, which losses usually ignore, and how this loss averages over the "
    "others is not known: batches count by their samples, so that the result may differ from that "
    "of all data in one batch; give one batch, or a loss of torch such as nn.CrossEntropyLoss."
)
"""Warning for several batches of a custom loss, or of one that the model computes."""


@dataclass(frozen=True)
class KnownLoss:
    r"""A loss whose derivatives in the output have a closed form.

    .. math:: L = -c \sum_i \log \mathrm{softmax}(f_i)_{y_i} \quad \text{or} \quad
        L = \frac{c}{2} \sum_i \lVert f_i - y_i \rVert^2

    Args:
        kind: which of the two.
        scale: c.
        smoothing: label smoothing, which does not enter the Hessian.
    """

    kind: Literal["cross_entropy", "squares"]
    scale: float
    smoothing: float = 0.0


def known_loss(loss: object, output: Any, target: Any) -> KnownLoss | None:
    """Return the closed form of a loss at an output, or None.

    Known are cross-entropy with class labels and squared errors, as functions or modules of torch
    or from `normscope.problem`, with the default weights and no ignored label.

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
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    reduction = getattr(loss, "reduction", "mean")
    if is_cross_entropy(loss) and is_unweighted(loss) and _are_labels(output, target):
        scale = 1.0 if reduction == "sum" else 1 / target.numel()
        return KnownLoss("cross_entropy", scale, float(getattr(loss, "label_smoothing", 0.0)))
    if not is_squared_error(loss):
        return None
    if loss is squared_error:
        return KnownLoss("squares", 1 / len(output))
    if output.shape == target.shape:
        return KnownLoss("squares", 2.0 if reduction == "sum" else 2 / output.numel())
    return None


def is_cross_entropy(loss: object) -> bool:
    """Return whether a loss is the cross-entropy of a softmax, of any weights and reduction.

    A subclass of torch's module does not count, nor one with hooks or another ``forward``: it may
    compute something else.

    >>> is_cross_entropy(functional.cross_entropy), is_cross_entropy(nn.NLLLoss())
    (True, False)
    """
    return _is_one_of(loss, cross_entropy, functional.cross_entropy, nn.CrossEntropyLoss)


def is_squared_error(loss: object) -> bool:
    """Return whether a loss is a squared error, of any reduction.

    A subclass of torch's module does not count, nor one with hooks or another ``forward``: it may
    compute something else.

    >>> is_squared_error(nn.MSELoss()), is_squared_error(nn.L1Loss())
    (True, False)
    """
    return _is_one_of(loss, squared_error, functional.mse_loss, nn.MSELoss)


def _is_one_of(loss: object, own: Loss, function: Loss, module: type[nn.Module]) -> bool:
    """Return whether a loss is normscope's or torch's function or torch's module, unchanged."""
    if not _is_torchs(function):
        return False
    return loss is own or loss is function or (type(loss) is module and is_unchanged(loss))


def _is_torchs(function: Callable[..., Any]) -> bool:
    """Return whether a function of `torch.nn.functional` was not replaced by another."""
    return getattr(function, "__globals__", None) is vars(functional)


def is_unweighted(loss: Any) -> bool:
    """Return whether a loss has no class weights and ignores no class from 0 on."""
    return getattr(loss, "weight", None) is None and getattr(loss, "ignore_index", -1) < 0


def _are_labels(output: Tensor, target: Tensor) -> bool:
    """Return whether the targets are valid labels, none of which can mean "ignored"."""
    if target.is_floating_point() or output.dim() < 2:
        return False
    return bool((target >= 0).all() and (target < output.shape[1]).all())


def is_sum(loss: object) -> bool:
    """Return whether a loss of torch sums over the samples instead of averaging.

    >>> is_sum(nn.MSELoss(reduction="sum")), is_sum(nn.MSELoss())
    (True, False)
    """
    options = _torch_options(loss)
    return options is not None and options["reduction"] == "sum"


def ignored_label(loss: object) -> int | None:
    """Return the label that a loss of torch ignores; None if it ignores none, or is custom.

    >>> ignored_label(nn.CrossEntropyLoss(ignore_index=0)), ignored_label(cross_entropy)
    (0, None)
    """
    options = _torch_options(loss)
    return None if options is None else options.get("ignore_index")


def batch_weight(loss: object, target: Any) -> float | None:
    r"""Return the weight w of one batch in the mean loss L over several.

    .. math:: L = \sum_b w_b L_b \Big/ \sum_b w_b

    For cross-entropy and negative log-likelihood with labels, w is the sum of the class weights of
    the labels that are not ignored; for other means, the number of averaged entries.

    Args:
        loss: called as ``loss(output, target)``.
        target: the batch's targets.

    Returns:
        The weight; None if the loss is a sum, or custom, or its targets are not one tensor, so that
        its weights are unknown.

    >>> import torch
    >>> loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    >>> batch_weight(loss, torch.tensor([0, 1, 1, -100]))
    7.0
    """
    if not isinstance(target, Tensor):
        return None
    if loss is squared_error or loss is cross_entropy:
        return float(len(target) if loss is squared_error else target.numel())
    options = _torch_options(loss)
    if options is None or options["reduction"] == "sum":
        return None
    if options["reduction"] == "batchmean":
        return float(len(target))
    if "ignore_index" not in options or target.is_floating_point():
        return float(target.numel())
    counted = target[target != options["ignore_index"]].long()
    weight = options["weight"]
    return float(counted.numel() if weight is None else weight.double()[counted].sum())


def has_ignored_labels(target: Any) -> bool:
    """Return whether a target has labels of -100, torch's ``ignore_index``.

    >>> import torch
    >>> has_ignored_labels({"labels": torch.tensor([[3, -100]])})
    True
    """
    labels = (t for t in tensors_of(target) if not t.is_floating_point() and not t.is_complex())
    return any(bool(each.eq(-100).any()) for each in labels)


def no_label_error() -> InputError:
    """Return the error for a mean loss if the `batch_weight` of all batches is 0."""
    return InputError(
        "the loss is a mean over labels, but ignores every label of the data or weights it with 0; "
        "give at least one that counts."
    )


def _torch_options(loss: Any) -> dict[str, Any] | None:
    """Return how a loss of torch reduces; None for a custom one.

    Those that divide by the weights of their labels also have ``weight`` and ``ignore_index``.
    """
    function, keywords = loss, {}
    if type(loss) is functools.partial and not loss.args:
        function, keywords = loss.func, loss.keywords
    by_label = function is functional.cross_entropy or function is functional.nll_loss
    if by_label or function in _MEANS:
        deprecated = {"reduce", "size_average"} & keywords.keys()
        options = _BY_LABEL if by_label else {"reduction": "mean"}
        return options | keywords if _is_torchs(function) and not deprecated else None
    if type(loss).__module__ != torch_losses.__name__ or not is_unchanged(loss):
        return None
    if type(loss) is nn.CrossEntropyLoss and not is_cross_entropy(loss):
        return None
    by_label = type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss)
    return {name: getattr(loss, name) for name in (_BY_LABEL if by_label else ("reduction",))}
