"""Losses: registered ones by name, torch's, custom ones, and losses that call the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.problem.batch import Batch
from normscope.registry import Registry

Loss: TypeAlias = Callable[[Any, Any], Tensor]
"""Called as ``loss(output, target)``; the mean over the samples."""

LOSSES: Registry[Loss] = Registry("loss")
"""The losses by name."""

_NEVER_A_LABEL = -(2**63)  # torch ignores the label -100 by default
_SUM_TOLERANCE = 0.01  # of probabilities, for those in bfloat16


@dataclass(frozen=True)
class WholeLoss:
    """A loss that calls the model itself; made by `whole_loss`.

    Args:
        function: called as ``function(model, batch)``; the loss.
        outputs: called as ``outputs(model, batch)``; None if the function hides them.
        loss: called as ``loss(outputs, batch)``; None likewise.
    """

    function: Callable[[Any, Batch], Tensor]
    outputs: Callable[[Any, Batch], Any] | None = None
    loss: Callable[[Any, Batch], Tensor] | None = None

    @property
    def parts(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the user."""
        if self.outputs is None or self.loss is None:
            return (self.function,)
        return self.outputs, self.loss


def whole_loss(
    function: Callable[[Any, Batch], Tensor] | None = None,
    *,
    outputs: Callable[[Any, Batch], Any] | None = None,
    loss: Callable[[Any, Batch], Tensor] | None = None,
) -> WholeLoss:
    """Wrap a loss for models that are called in another way than a batch describes.

    Give ``function`` alone, or ``outputs`` and ``loss``. Only the second form shows the outputs,
    which Gauss-Newton and Fisher matrices need.

    Args:
        function: called as ``function(model, batch)``; returns the mean loss over the samples. It
            must call the model it is given, not one from its closure.
        outputs: called as ``outputs(model, batch)``; returns a tensor, or nested tuples, lists,
            mappings and dataclasses of tensors. It must call the model it is given.
        loss: called as ``loss(outputs, batch)``; returns the mean loss over the samples.

    Returns:
        What `Problem` and every function with a ``loss`` argument take in place of a loss.

    Raises:
        ArgumentTypeError: if neither or both forms are given, or a function is not one.

    >>> hidden = whole_loss(lambda model, batch: model(**batch).loss)
    >>> shown = whole_loss(
    ...     outputs=lambda model, batch: model(batch["image"]),
    ...     loss=lambda outputs, batch: cross_entropy(outputs, batch["label"]),
    ... )
    """
    given = [each is not None for each in (function, outputs, loss)]
    if given not in ([True, False, False], [False, True, True]):
        raise ArgumentTypeError(
            "whole_loss takes one function(model, batch), or outputs=function(model, batch) and "
            "loss=function(outputs, batch) together."
        )
    if outputs is None or loss is None:
        return WholeLoss(_require_callable(function))
    compute, reduce = _require_callable(outputs), _require_callable(loss)
    return WholeLoss(lambda model, batch: reduce(compute(model, batch), batch), compute, reduce)


def _require_callable(function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise ArgumentTypeError(f"whole_loss takes functions, got {type(function).__name__}.")
    return function  # type: ignore[no-any-return]


class WrongLabelError(InputError):
    """A label outside the model's outputs.

    Args:
        expected: the valid labels, in words.
        label: the first that is not valid.
    """

    def __init__(self, expected: str, label: int) -> None:
        self.label = label
        remedy = "give the model as many outputs as there are classes"
        if label < 0:
            remedy = "number the classes from 0, and leave out samples without one"
        super().__init__(f"{expected}, got the label {label}; {remedy}.")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as an `InputError`: the message alone cannot rebuild this class."""
        return InputError, (str(self),)


@LOSSES.register
def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    r"""Mean over the samples of minus the log-probability of the target class.

    .. math:: L = -\frac1m \sum_{i=1}^{m} \log \mathrm{softmax}(f_i)_{y_i}

    Args:
        output: scores before the softmax, (batch, classes) or (batch, classes, positions...).
        target: class labels of any integer type, or probabilities in the shape of ``output``,
            whose values are not checked: see `check_probabilities`.

    Returns:
        The loss, a scalar tensor.

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
        _explain_label(error, output, target)
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
        The loss, a scalar tensor.

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
    # mse_loss: one fused pass each way, in float32 under autocast
    total = functional.mse_loss(output, target.to(output.dtype), reduction="sum")
    return total / (2 * len(output))


@LOSSES.register(name="model")
def model_loss(output: Any, target: Any) -> Tensor:
    """The loss that the model itself returns, as ``output.loss`` or ``output["loss"]``.

    Models of Hugging Face return it if their batch has labels.

    Args:
        output: of the model.
        target: not used.

    Returns:
        The loss, a scalar tensor.

    Raises:
        ArgumentTypeError: if the output has none.

    >>> model_loss({"loss": torch.tensor(2.0)}, None)
    tensor(2.)
    """
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(found, Tensor):
        raise ArgumentTypeError(
            "loss='model' needs a model that returns its loss as output.loss or output['loss'], "
            f"got {_describe_output(output)} without one; give the batch the labels that the model "
            "needs for it, or another loss."
        )
    return found


def accuracy(output: Tensor, target: Tensor) -> float:
    """Return the fraction of the samples whose largest output is at the target class.

    A sample with a NaN output counts as wrong.

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
    # max() returns the index of a NaN as if it were the largest value
    right = (predicted == labels) & ~largest.isnan()
    return right.double().mean().item()


def check_output(output: object) -> None:
    """Raise `ArgumentTypeError` if a model's output is not a tensor, which most losses need.

    >>> check_output(torch.zeros(2, 3))
    """
    if not isinstance(output, Tensor):
        raise ArgumentTypeError(
            f"the model's output must be a tensor for this loss, got {_describe_output(output)}; "
            "use loss='model' for the loss that the model itself returns, or a callable that "
            "selects a tensor, such as lambda output, target: loss(output[0], target)."
        )


def _describe_output(output: object) -> str:
    """Return the type of an output, with the names or the number of its parts."""
    name = f"a {type(output).__name__}"
    if isinstance(output, Mapping) and output:
        return f"{name} of {', '.join(map(str, output))}"
    return f"{name} of {len(output)}" if isinstance(output, tuple | list) else name


def check_probabilities(target: Tensor) -> None:
    """Reject a floating-point target of `cross_entropy` that does not hold probabilities.

    With other values the loss has no minimum, and its Gauss-Newton matrix negative eigenvalues.

    Args:
        target: (batch, classes, ...); labels and targets without classes pass.

    Raises:
        InputError: if a value is negative, or those of a sample do not sum to 1.

    >>> check_probabilities(torch.tensor([[0.25, 0.75]]))
    """
    if not target.is_floating_point() or target.dim() < 2:
        return
    sums_to_one = (target.sum(dim=1) - 1).abs() <= _SUM_TOLERANCE
    if not ((target >= 0).all() & sums_to_one.all()):
        raise InputError(
            "floating-point targets of cross_entropy are probabilities, not negative and summing "
            "to 1 over the classes, got other values; for a regression use squared_error."
        )


def _holds_probabilities(output: Tensor, target: Tensor) -> bool:
    """Return whether the target is a vector per sample, not a label; check both shapes."""
    check_output(output)
    if output.dim() < 2:
        raise ShapeError(
            f"expected outputs of shape (batch, classes), got {tuple(output.shape)}; "
            "a single sample needs a batch dimension: output.unsqueeze(0)."
        )
    vectors = target.is_floating_point()
    expected = output.shape if vectors else output.shape[:1] + output.shape[2:]
    if target.shape != expected:
        is_sequence = output.dim() > 2 and target.shape == output.shape[:-1]
        raise _shape_error(output, target, _TOKENS if is_sequence else "")
    return vectors


def _one_hot(output: Tensor, labels: Tensor) -> Tensor:
    """Return one-hot rows in the shape and dtype of the output; works under vmap."""
    if output.dim() != 2 or labels.shape != output.shape[:1]:
        raise _shape_error(output, labels)
    try:
        return torch.zeros_like(output).scatter(1, labels.long().unsqueeze(1), 1.0)
    except RuntimeError as error:
        _explain_label(error, output, labels)
        raise


_TOKENS = (
    " For a label per token use a custom loss that flattens both: lambda output, target: "
    "F.cross_entropy(output.flatten(0, -2), target.flatten())."
)


def _shape_error(output: Tensor, target: Tensor, remedy: str = "") -> ShapeError:
    return ShapeError(
        f"expected (batch,) integer labels for outputs (batch, classes), or floating-point targets "
        f"in the shape of the output {tuple(output.shape)}; got a target of type {target.dtype} "
        f"and shape {tuple(target.shape)}.{remedy}"
    )


def _explain_label(error: Exception, output: Tensor, target: Tensor) -> None:
    """Raise an error that says what to do, if torch's is about a label."""
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


def check_signature(function: Callable[..., Any], *arguments: str, what: str = "the loss") -> None:
    """Reject a loss that does not take its arguments.

    Args:
        function: the loss; one whose signature cannot be read passes.
        *arguments: names of what it will be called with.
        what: its name in the message.

    Raises:
        ArgumentTypeError: if it takes fewer, or needs more.

    >>> check_signature(lambda output: output.mean(), "output", "target")
    Traceback (most recent call last):
    normscope.errors.ArgumentTypeError: the loss must take (output, target), but <lambda> takes ...
    """
    # a module's __call__ takes everything, and hooks may change what its forward gets
    hooked = isinstance(function, nn.Module) and function._forward_pre_hooks
    call = function.forward if isinstance(function, nn.Module) and not hooked else function
    try:
        # a decorated loss takes what its wrapper takes
        signature = inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):  # code in C has none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        takes = ", ".join(signature.parameters)
        raise ArgumentTypeError(
            f"{what} must take ({', '.join(arguments)}), but {name} takes ({takes})."
        ) from error


def call_loss(loss: Callable[..., Any], output: Any, target: Any) -> Any:
    """Return ``loss(output, target)``, with a clear error if a loss of torch rejects them.

    Args:
        loss: any loss; errors of a custom one are not changed.
        output: the model's output.
        target: the targets.

    Returns:
        What the loss returns.

    Raises:
        InputError: if a loss of torch does not take them.

    >>> call_loss(nn.BCEWithLogitsLoss(), torch.zeros(2, 3), torch.zeros(2))
    Traceback (most recent call last):
        ...
    normscope.errors.InputError: BCEWithLogitsLoss does not take an output of shape (2, 3) ...
    """
    is_module = type(loss).__module__.startswith("torch.nn")
    if is_module or str(getattr(loss, "__module__", "")).startswith("torch.nn"):
        check_output(output)
    if not is_module:
        return loss(output, target)
    try:
        return loss(output, target)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        got = f"a target of type {type(target).__name__}"
        if isinstance(target, Tensor):
            got = f"a target of shape {tuple(target.shape)} and {target.dtype}"
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"{type(loss).__name__} does not take an output of shape {tuple(output.shape)} with "
            f"{got} ({reason}); give the targets that it expects."
        ) from error
