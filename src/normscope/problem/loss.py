"""Losses: registered ones by name, torch's, custom ones, and losses that call the model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.problem.batch import Batch
from normscope.problem.isolation import undisturbed
from normscope.registry import Registry

__all__ = [
    "LOSSES",
    "KnownLoss",
    "Loss",
    "WholeLoss",
    "WrongLabelError",
    "accuracy",
    "called",
    "check_call",
    "check_output",
    "check_probabilities",
    "cross_entropy",
    "is_cross_entropy",
    "is_squared_error",
    "is_unweighted",
    "known_loss",
    "modules_of_loss",
    "squared_error",
    "steady_loss",
    "whole_loss",
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
        True for the one of `normscope.problem` and torch's function and module, but not for a
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
        True for the one of `normscope.problem` and torch's function and module, but not for a
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


def check_call(function: Callable[..., Any], *arguments: str) -> None:
    """Refuse a loss that does not take its arguments, before a library line fails to call it.

    Args:
        function: the loss; one whose signature cannot be read is not judged.
        *arguments: what it will be called with, in words.

    Raises:
        ArgumentTypeError: if it takes fewer, or asks for more.

    >>> check_call(lambda output: output.mean(), "output", "target")
    Traceback (most recent call last):
    normscope.errors.ArgumentTypeError: the loss must take (output, target), but <lambda> takes ...
    """
    # a module's own call takes everything, and hooks may change what its forward gets
    hooked = isinstance(function, nn.Module) and function._forward_pre_hooks
    called = function.forward if isinstance(function, nn.Module) and not hooked else function
    try:
        # a decorated loss takes what its wrapper takes
        signature = inspect.signature(called, follow_wrapped=False)
    except (TypeError, ValueError):  # code in C has none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        takes = ", ".join(signature.parameters)
        raise ArgumentTypeError(
            f"the loss must take ({', '.join(arguments)}), but {name} takes ({takes})."
        ) from error


def called(loss: Callable[..., Any], output: Tensor, target: Any) -> Any:
    """The loss of an output.

    Args:
        loss: whatever it is; what a loss of the user's own raises is not touched.
        output: the model's.
        target: the targets.

    Returns:
        What the loss returns.

    Raises:
        InputError: if a loss of torch does not take them, with what they are.

    >>> called(nn.BCEWithLogitsLoss(), torch.zeros(2, 3), torch.zeros(2))
    Traceback (most recent call last):
        ...
    normscope.errors.InputError: BCEWithLogitsLoss does not take an output of shape (2, 3) ...
    """
    if not type(loss).__module__.startswith("torch.nn"):
        return loss(output, target)
    try:
        return loss(output, target)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        came = f"a target of type {type(target).__name__}"
        if isinstance(target, Tensor):
            came = f"a target of shape {tuple(target.shape)} and {target.dtype}"
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"{type(loss).__name__} does not take an output of shape {tuple(output.shape)} with "
            f"{came} ({reason}); give the targets that it asks for."
        ) from error


def modules_of_loss(loss: Loss | WholeLoss | str, model: nn.Module) -> list[nn.Module]:
    """The modules that a loss is, or that its function names: such as a loss with a running mean.

    Args:
        loss: as `Problem` takes it.
        model: the model, which is not one of them, nor is what holds it.

    Returns:
        Each once.

    >>> modules_of_loss(nn.MSELoss(), nn.Linear(1, 1))
    [MSELoss()]
    """
    named = _named_by(loss.function if isinstance(loss, WholeLoss) else loss)
    found = {id(module): module for module in named}
    return [each for each in found.values() if all(model is not m for m in each.modules())]


def _named_by(function: Any) -> Iterator[nn.Module]:
    owner = getattr(function, "__self__", None)
    if isinstance(function, nn.Module):
        yield function
    elif isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _named_by(part)
    elif isinstance(owner, nn.Module):
        yield owner
    elif inspect.isfunction(function):
        around = inspect.getclosurevars(function)
        values = [*around.nonlocals.values(), *around.globals.values()]
        yield from (value for value in values if isinstance(value, nn.Module))


def steady_loss(
    loss: Loss | WholeLoss | str, modules: Sequence[nn.Module]
) -> Loss | WholeLoss | str:
    """A loss that is the same function each time: its modules are put back after every call.

    Args:
        loss: as `Problem` takes it.
        modules: what it runs with.

    Returns:
        The loss itself if its modules have no state to change.
    """
    if isinstance(loss, str) or not any(map(_has_state, modules)):
        return loss

    def steady(*arguments: Any) -> Tensor:
        with undisturbed(nn.Module(), *modules):
            function = loss.function if isinstance(loss, WholeLoss) else loss
            return function(*arguments)

    return WholeLoss(steady) if isinstance(loss, WholeLoss) else steady


def _has_state(module: nn.Module) -> bool:
    own = vars(nn.Module()).keys()
    fixed = bool | int | float | str | None
    return any(
        next(part.buffers(False), None) is not None
        or any(name not in own and not isinstance(v, fixed) for name, v in vars(part).items())
        for part in module.modules()
    )


@dataclass(frozen=True)
class WholeLoss:
    """A loss that calls the model itself; made by `whole_loss`."""

    function: Callable[[Any, Batch], Tensor]


def whole_loss(function: Callable[[Any, Batch], Tensor]) -> WholeLoss:
    """A loss for models that are not called as ``model(inputs)``.

    Args:
        function: called as ``function(model, batch)``; returns the mean loss over the samples. It
            must call the model it is given, not one of its surroundings.

    Returns:
        What `Problem` and every function with a ``loss`` argument take in place of a loss.

    >>> language_loss = whole_loss(lambda model, batch: model(**batch).loss)
    """
    return WholeLoss(function)
