"""Losses by name, and the accuracy: each is called as ``loss(output, target)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.registry import Registry

__all__ = [
    "LOSSES",
    "Loss",
    "WrongLabelError",
    "accuracy",
    "check_output",
    "check_probabilities",
    "cross_entropy",
    "squared_error",
]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Called as ``loss(output, target)``; the mean over the samples."""

LOSSES: Registry[Loss] = Registry("loss")
"""The losses by name."""

_NEVER_A_LABEL = -(2**63)  # torch leaves out the label -100 unless told another
_SUM_TOLERANCE = 0.01  # probabilities in bfloat16 add up to 1 no better


class WrongLabelError(InputError):
    """A label that no output stands for.

    Args:
        expected: what the labels may be, in words.
        label: the first one that is not.
    """

    def __init__(self, expected: str, label: int) -> None:
        self.label = label
        remedy = "give the model as many outputs as there are classes"
        if label < 0:
            remedy = "number the classes from 0, and leave out samples without one"
        super().__init__(f"{expected}, got the label {label}; {remedy}.")

    def __reduce__(self) -> tuple[object, ...]:
        """A message alone cannot make it again in another process."""
        return InputError, (str(self),)


@LOSSES.register
def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    r"""Mean over the samples of minus the log-probability of the target class.

    .. math:: L = -\frac1m \sum_{i=1}^{m} \log \mathrm{softmax}(f_i)_{y_i}

    Args:
        output: scores before the softmax, (batch, classes) or (batch, classes, positions...).
        target: class labels of any integer type, or probabilities in the shape of ``output``,
            taken as they are: `check_probabilities` looks at their values.

    Returns:
        The loss, a tensor without dimensions.

    Raises:
        InputError: if a label is negative or not below the number of classes.

    >>> scores = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> round(cross_entropy(scores, torch.tensor([0, 1])).item(), 4)  # log 2
    0.6931
    """
    if _holds_probabilities(output, target):
        return functional.cross_entropy(output, target.to(output.dtype))
    try:
        return functional.cross_entropy(output, target.long(), ignore_index=_NEVER_A_LABEL)
    except (IndexError, RuntimeError) as error:  # RuntimeError: the same under vmap
        _blame_label(error, output, target)
        raise


@LOSSES.register
def squared_error(output: Tensor, target: Tensor) -> Tensor:
    r"""Half the squared distance to the target, summed over outputs, averaged over samples.

    .. math:: L = \frac{1}{2m} \sum_{i=1}^{m} \lVert f_i - y_i \rVert^2

    Its Hessian in the outputs is the identity, so that its Gauss-Newton matrix is the Fisher
    matrix of the mean-field theory. Class labels stand for their one-hot vectors.

    Reference: wei2018, Section 2.

    Args:
        output: (batch, ...); with class labels (batch, classes).
        target: floating-point values in the shape of ``output``, or (batch,) integer labels.

    Returns:
        The loss, a tensor without dimensions.

    Raises:
        ShapeError: if output or target has the wrong shape.

    >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])).item()
    2.5
    >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([1])).item()
    1.0
    """
    check_output(output)
    if output.dim() == 0:
        raise ShapeError("squared_error expects an output of shape (batch, ...), got a scalar.")
    if not target.is_floating_point():
        target = _one_hot(output, target)
    elif target.shape != output.shape:
        raise _shape_error(output, target)
    # mse_loss: one fused pass each way, in float32 under autocast.
    total = functional.mse_loss(output, target.to(output.dtype), reduction="sum")
    return total / (2 * len(output))


def check_output(output: object) -> None:
    """Refuse an output of a model that is no tensor.

    Args:
        output: what the model returned.

    Raises:
        ArgumentTypeError: if it is anything else, such as a dictionary.

    >>> check_output(torch.zeros(2, 3))
    """
    if not isinstance(output, Tensor):
        raise ArgumentTypeError(
            f"the model's output must be a tensor, got {type(output).__name__}; "
            "pick one in a whole_loss."
        )


def check_probabilities(target: Tensor) -> None:
    """Refuse a floating-point target of `cross_entropy` that is not made of probabilities.

    With other values the loss has no minimum, and its Gauss-Newton matrix negative eigenvalues.

    Args:
        target: (batch, classes, ...); labels and targets without classes pass.

    Raises:
        InputError: if a value is negative, or those of a sample do not add up to 1.

    >>> check_probabilities(torch.tensor([[0.25, 0.75]]))
    """
    if not target.is_floating_point() or target.dim() < 2:
        return
    adds_up = (target.sum(dim=1) - 1).abs() <= _SUM_TOLERANCE
    if not ((target >= 0).all() & adds_up.all()):
        raise InputError(
            "floating-point targets of cross_entropy are probabilities, not negative and adding "
            "up to 1 over the classes, got other values; for a regression use squared_error."
        )


def accuracy(output: Tensor, target: Tensor) -> float:
    """Fraction of the samples whose largest output is at the target class.

    A sample with an output that is not a number counts as wrong.

    Args:
        output: (batch, classes).
        target: (batch,) class labels, or one-hot vectors or probabilities like ``output``.

    Returns:
        A number between 0 and 1.

    Raises:
        ShapeError: if ``output`` is not (batch, classes) with at least one sample.

    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    0.5
    """
    if output.dim() != 2 or len(output) == 0:
        raise ShapeError(
            "accuracy expects outputs of shape (batch, classes) with at least one sample, "
            f"got {tuple(output.shape)}."
        )
    labels = target.argmax(dim=1) if _holds_probabilities(output, target) else target
    largest, predicted = output.max(dim=1)
    # max() returns the place of a NaN as if it were the largest value
    right = (predicted == labels) & ~largest.isnan()
    return right.double().mean().item()


def _holds_probabilities(output: Tensor, target: Tensor) -> bool:
    """Whether the target is a vector per sample rather than a label; checks the shape of both."""
    check_output(output)
    if output.dim() < 2:
        raise ShapeError(
            f"expected outputs of shape (batch, classes), got {tuple(output.shape)}; "
            "a single sample needs a batch dimension: output.unsqueeze(0)."
        )
    vectors = target.is_floating_point()
    expected = output.shape if vectors else output.shape[:1] + output.shape[2:]
    if target.shape != expected:
        raise _shape_error(output, target)
    return vectors


def _one_hot(output: Tensor, labels: Tensor) -> Tensor:
    """One-hot rows in the shape and type of the output; unlike torch's, it works under vmap."""
    if output.dim() != 2 or labels.shape != output.shape[:1]:
        raise _shape_error(output, labels)
    try:
        return torch.zeros_like(output).scatter(1, labels.long().unsqueeze(1), 1.0)
    except RuntimeError as error:
        _blame_label(error, output, labels)
        raise


def _shape_error(output: Tensor, target: Tensor) -> ShapeError:
    return ShapeError(
        f"expected (batch,) integer labels for outputs (batch, classes), or floating-point targets "
        f"in the shape of the output {tuple(output.shape)}; got a target of type {target.dtype} "
        f"and shape {tuple(target.shape)}."
    )


def _blame_label(error: Exception, output: Tensor, target: Tensor) -> None:
    """Raise an error that says what to do, if torch's is about a label; else let it pass."""
    if "out of bounds" not in str(error):
        return
    classes = output.shape[1]
    expected = f"expected labels from 0 to {classes - 1}, one for each of the {classes} outputs"
    try:
        label = int(target[(target < 0) | (target >= classes)].flatten()[0])
    except (RuntimeError, IndexError):  # under vmap no value can be read
        remedy = "give the model as many outputs as there are classes"
        raise InputError(f"{expected}, got a label outside; {remedy}.") from error
    raise WrongLabelError(expected, label) from error
