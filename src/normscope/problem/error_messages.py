"""Error messages about models, losses and data, one sentence each."""

from __future__ import annotations

import cmath
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, MisfitError, NormscopeError, StateError
from normscope.problem.batch import Batch, tensors_of

# part of torch's message: what it means here
_MEANINGS: dict[str, tuple[type[NormscopeError], str]] = {
    "modified by an inplace operation": (
        StateError,
        "the model or loss overwrites in place a value that its derivative needs; use the "
        "operation that makes a new tensor (x = x + y instead of x += y, inplace=False)",
    ),
    "being used in an in-place operation": (
        StateError,
        "the model overwrites a parameter in place during its forward pass; make a new tensor "
        "instead",
    ),
    "more than 1 value per channel": (
        InputError,
        "batch statistics need more than one value per channel; give a larger batch "
        "(drop_last=True leaves out a DataLoader's last one) or use mode='eval'",
    ),
    "Expected all tensors to be on the same device": (
        InputError,
        "the model, the loss and the data are not on one device; move them with .to(device)",
    ),
    "is not implemented": (
        StateError,
        "the model or loss uses an operation without the second derivatives that curvature needs",
    ),
    "does not currently support double backward": (
        StateError,
        "the model or loss calls a function compiled by torch.compile, which has no second "
        'derivative; measure inside torch.compiler.set_stance("force_eager")',
    ),
    "torch.utils.checkpoint": (
        StateError,
        "a checkpointed part of the model does not compute the same again in the backward pass; "
        "call it without torch.utils.checkpoint for the measurement",
    ),
    "to access the saved tensors after they have already been freed": (
        StateError,
        "the model keeps part of its computation from one call to the next, such as a hidden "
        "state; detach it in the forward pass",
    ),
}


def require_module(model: object, caller: str | None = None) -> None:
    """Raise if the model is not an `nn.Module`.

    Args:
        model: what the user passed.
        caller: the name of the function for the message; None if its argument is ``model``.

    Raises:
        ArgumentTypeError: if it is something else.

    >>> require_module(nn.ReLU, "fold")
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: fold expects an nn.Module, got the class ReLU; create an ...
    """
    if isinstance(model, nn.Module):
        return
    got = type(model).__name__
    if isinstance(model, type):
        got = f"the class {model.__name__}; create an instance: {model.__name__}(...)"
    elif isinstance(model, str):
        got = f"the string {model!r}; build a registered model with normscope.models.build"
    expected = "the model must be" if caller is None else f"{caller} expects"
    raise ArgumentTypeError(f"{expected} an nn.Module, got {got}.")


@contextmanager
def explain_errors() -> Iterator[None]:
    """Replace torch's errors about derivatives, devices and batches by ones that say what to do.

    Raises:
        NormscopeError: of a fitting class, from torch's own error; other errors pass.
    """
    try:
        yield
    except NormscopeError:
        raise
    except (RuntimeError, ValueError) as error:
        for part, (kind, meaning) in _MEANINGS.items():
            if part in str(error):
                first = str(error).strip().splitlines()[0]
                raise kind(f"{meaning} (torch: {first})") from error
        raise


def check_finite(tensor: Tensor, what: str, batch: Batch = ()) -> None:
    """Reject values that are not finite.

    Args:
        tensor: the values.
        what: their name in the message.
        batch: what they were computed from; the message names it if it is not finite itself.

    Raises:
        StateError: if a value is infinite or NaN.
    """
    if not is_finite(tensor):
        raise StateError(
            f"{what} is not finite (infinite or not a number); "
            + (_bad_data(batch) or "check the data, the weights and the loss")
            + " before measuring curvature."
        )


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite.

    >>> is_finite(torch.tensor([1.0, torch.nan]))
    False
    """
    # NaN and infinity survive a sum, which needs no temporary; finite values may overflow in it
    return cmath.isfinite(tensor.detach().sum().item()) or bool(torch.isfinite(tensor).all())


def _bad_data(batch: Batch) -> str:
    """Return what is wrong with the data itself; "" if all of it is finite."""
    tensors = list(tensors_of(batch))
    is_pair = isinstance(batch, tuple | list) and len(tensors) == 2
    names = ("inputs", "targets") if is_pair else ("data",) * len(tensors)
    for name, tensor in zip(names, tensors, strict=True):
        bad = ~torch.isfinite(tensor)
        if bad.any():
            kind = "NaN (not a number)" if tensor.isnan().any() else "infinity"
            samples = int(bad.flatten(1).any(1).sum()) if tensor.dim() > 1 else int(bad.sum())
            of = f", in {samples} of the {len(tensor)} samples of the batch" if tensor.dim() else ""
            return f"the {name} themselves contain {kind}{of}: clean the data"
    return ""


def no_gradient_error() -> StateError:
    """Return the error for a loss that is detached from the output."""
    return StateError(
        "the loss must be differentiable in the model's output, but its value has no gradient; use "
        "the output in it, without detach, no_grad or a conversion to numbers."
    )


# Parts of torch's messages about shapes and types; other errors of a forward pass are not changed.
_SHAPE_MESSAGES = re.compile(
    r"shapes cannot be multiplied|size mismatch|the size of tensor|sizes of tensors must match"
    r"|is invalid for input of size|expected input\b|expected number of channels|normalized_shape"
    r"|\dD( \(\w+\))? input|(?:running_mean|weight) should contain|kernel size can't be greater"
    r"|output size is too small|target size|target batch_size|target \d+ is out of bounds"
    r"|could not be broadcast|don't multiply up to the size|expected weight to be a vector",
    re.IGNORECASE,
)
_TYPE_MESSAGES = re.compile(
    r"scalar type|same (dtype|datatype)|type \(.*\) should be the same|not implemented for '"
    r"|must be either a floating point",
    re.IGNORECASE,
)
_INDEX_MESSAGES = re.compile(r"index (\S+ is )?out of (bounds|range)", re.IGNORECASE)
_SIZES = {"in_features": "feature", "in_channels": "channel", "num_features": "channel"}
_AXES = ("samples", "channels", "depth", "height", "width")
_DIMENSIONS: dict[type[nn.Module], int] = {
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.Conv3d: 5,
    nn.BatchNorm2d: 4,
    nn.BatchNorm3d: 5,
}


class FitCheck:
    """Context around a call of a model that raises `misfit_error` for errors about its data.

    Modules nested too deeply for Python are refused, too.

    A class, not a generator: every training step enters it.

    Args:
        model: the model.
        batch: what it is called with.
    """

    __slots__ = ("_batch", "_model")

    def __init__(self, model: nn.Module, batch: object) -> None:
        self._model = model
        self._batch = batch

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, RuntimeError | ValueError | IndexError):
            return
        if isinstance(error, NormscopeError):
            return
        if isinstance(error, RecursionError):
            raise StateError(
                "the forward pass calls more nested modules or functions than Python's recursion "
                f"limit of {sys.getrecursionlimit()} allows; raise it by sys.setrecursionlimit."
            ) from error
        if explained := misfit_error(error, self._model, self._batch):
            raise explained from error


def misfit_error(error: Exception, model: nn.Module, batch: object) -> MisfitError | None:
    """Return the error to raise from one of a forward pass about shapes or integer inputs.

    Args:
        error: as torch raised it.
        model: the model that was called; the message names the layer that failed.
        batch: what it was called with: nested tensors.

    Returns:
        An error with a message of one sentence; None if the error is about something else.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
        >>> try:
        ...     model(torch.zeros(5, 1, 2, 2))
        ... except RuntimeError as error:
        ...     print(misfit_error(error, model, torch.zeros(5, 1, 2, 2)))
        the data does not fit the model: layer '1' (Linear) expects 3 features, got an input of \
shape (5, 4), from a batch of shape (5, 1, 2, 2); give data of the shape the model was made for, \
or make the model for this shape.
    """
    message = str(error).strip().partition("\n")[0].rstrip(".")
    is_of_type, is_of_index = _TYPE_MESSAGES.search(message), _INDEX_MESSAGES.search(message)
    if not (is_of_type or is_of_index or _SHAPE_MESSAGES.search(message)):
        return None
    name, layer, given = _failed_layer(error.__traceback__, model)
    title = f"layer {name!r} ({type(layer).__name__})" if name else f"the {type(layer).__name__}"
    if is_of_type:
        return _integer_error(title, layer, given)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors_of(batch)) or "no tensor"
    if is_of_index:
        return None if layer is None else _index_error(title, message, shapes)
    if layer is None:
        return MisfitError(
            f"the loss does not fit the model's output and the targets ({message}), for a batch of "
            f"shape {shapes}; give the model as many outputs as the targets need."
        )
    return MisfitError(
        f"the data does not fit the model: {title} {_expectation(layer, given, message)}, from a "
        f"batch of shape {shapes}; give data of the shape the model was made for, or make the "
        "model for this shape."
    )


def _index_error(title: str, message: str, shapes: str) -> MisfitError:
    """Return the error for an index beyond a tensor: a wrong token, or a graph that was cut."""
    return MisfitError(
        f"the data does not fit the model: {title} uses an index that is not there ({message}), "
        f"from a batch of shape {shapes}; check the indices in the data, and if the rows of the "
        "batch are not samples, such as the nodes of a graph, give it whole, in a list, without a "
        "batch size."
    )


def _integer_error(title: str, layer: nn.Module | None, given: Tensor | None) -> MisfitError | None:
    """Return the error for integers where a layer expects numbers; an embedding takes indices."""
    embeds = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    if layer is None or given is None or embeds or given.is_floating_point() or given.is_complex():
        return None
    return MisfitError(
        f"the data does not fit the model: {title} got integer inputs ({given.dtype}) of shape "
        f"{tuple(given.shape)}; convert them with .float()."
    )


def _expectation(layer: nn.Module, given: Tensor | None, message: str) -> str:
    """Return what the layer expects and what it got; torch's message where that says more."""
    size = next((name for name in _SIZES if hasattr(layer, name)), None)
    dimensions = next((n for kind, n in _DIMENSIONS.items() if isinstance(layer, kind)), None)
    got = "" if given is None else f", got an input of shape {tuple(given.shape)}"
    if dimensions is not None and given is not None and given.dim() != dimensions:
        axes = ", ".join((*_AXES[:2], *_AXES[7 - dimensions :]))
        return f"expects {dimensions} dimensions ({axes}){got}"
    if size is None or given is None or _has_size(layer, size, given):
        return f"rejects its input ({message}){got}"
    count = getattr(layer, size)
    return f"expects {count} {_SIZES[size]}{'' if count == 1 else 's'}{got}"


def _has_size(layer: nn.Module, size: str, given: Tensor) -> bool:
    """Return whether the size is right, so that something else is wrong."""
    axis = -1 if size == "in_features" else 1
    return given.dim() > 1 and given.shape[axis] == getattr(layer, size)


def _failed_layer(
    traceback: TracebackType | None, model: nn.Module
) -> tuple[str, nn.Module | None, Tensor | None]:
    """Return name, module and input of the innermost module of the model in a traceback."""
    names = {id(module): name for name, module in model.named_modules()}
    found: tuple[str, nn.Module | None, Tensor | None] = ("", None, None)
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_locals.get("self")
        if frame.f_code.co_name == "_wrapped_call_impl" and id(module) in names:
            arguments = frame.f_locals.get("args") or ()
            given = next((part for part in arguments if isinstance(part, Tensor)), None)
            found = names[id(module)], module, given
        traceback = traceback.tb_next
    return found
