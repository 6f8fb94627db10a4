"""What a model, a loss or data did wrong, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, MisfitError, NormscopeError, StateError
from normscope.problem.batch import Batch, tensors_of

__all__ = [
    "Fitting",
    "check_finite",
    "explained",
    "is_finite",
    "misfit",
    "no_gradient",
    "require_module",
]

# part of torch's message -> what it means here
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
        "the model, the loss and the data are not on one device; move them by .to(device)",
    ),
    "is not implemented": (
        StateError,
        "the model or loss uses an operation without the second derivatives that curvature needs",
    ),
    "to access the saved tensors after they have already been freed": (
        StateError,
        "the model keeps part of its computation from one call to the next, such as a hidden "
        "state; detach it in the forward pass",
    ),
}


@contextmanager
def explained() -> Iterator[None]:
    """Raise torch's errors about derivatives, devices and batches again, with what to do.

    Raises:
        NormscopeError: of a fitting kind, from torch's own error; other errors pass as they are.
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
    """Refuse values that are not finite.

    Args:
        tensor: the values.
        what: their name in the message.
        batch: that they were computed from; blamed if it is not finite itself.

    Raises:
        StateError: if one is infinite or not a number.
    """
    if not is_finite(tensor):
        raise StateError(
            f"{what} is not finite (infinite or not a number); "
            + (_blamed(batch) or "check the data, the weights and the loss")
            + " before measuring curvature."
        )


def no_gradient() -> StateError:
    """The error for a loss that torch cannot follow back to the output."""
    return StateError(
        "the loss must be differentiable in the model's output, but its value has no gradient; use "
        "the output in it, without detach, no_grad or a conversion to numbers."
    )


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite.

    >>> is_finite(torch.tensor([1.0, torch.nan]))
    False
    """
    # one reduction without a temporary of the same size: NaN and infinity survive a sum; finite
    # values can overflow in it too, and are then looked at closely
    return bool(torch.isfinite(tensor.detach().sum())) or bool(torch.isfinite(tensor).all())


def _blamed(batch: Batch) -> str:
    """What is wrong with the data itself; "" if all of it is finite."""
    tensors = list(tensors_of(batch))
    names = ("inputs", "targets") if len(tensors) == 2 else ("data",) * len(tensors)
    for name, tensor in zip(names, tensors, strict=True):
        bad = ~torch.isfinite(tensor)
        if bad.any():
            kind = "NaN (not a number)" if tensor.isnan().any() else "infinity"
            rows = int(bad.flatten(1).any(1).sum()) if tensor.dim() > 1 else int(bad.sum())
            return (
                f"the {name} themselves contain {kind}, in {rows} of the {len(tensor)} samples of "
                "the batch: clean the data"
            )
    return ""


# Parts of torch's messages about shapes; other errors of a forward pass are left alone.
_SIGNS = re.compile(
    r"shapes cannot be multiplied|size mismatch|the size of tensor|sizes of tensors must match"
    r"|is invalid for input of size|expected input\b|expected number of channels|normalized_shape"
    r"|\dD( \(\w+\))? input|(?:running_mean|weight) should contain|kernel size can't be greater"
    r"|output size is too small|target size|target batch_size|target \d+ is out of bounds"
    r"|could not be broadcast|don't multiply up to the size|expected weight to be a vector",
    re.IGNORECASE,
)
_TYPE_SIGNS = re.compile(
    r"scalar type|same (dtype|datatype)|type \(.*\) should be the same|not implemented for '"
    r"|must be either a floating point",
    re.IGNORECASE,
)
_SIZES = {"in_features": "feature", "in_channels": "channel", "num_features": "channel"}
_AXES = ("samples", "channels", "depth", "height", "width")
_DIMENSIONS: dict[type[nn.Module], int] = {
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.Conv3d: 5,
    nn.BatchNorm2d: 4,
    nn.BatchNorm3d: 5,
}


class Fitting:
    """A block that calls a model: errors about its data are raised again as `misfit` says them.

    A class and no generator, because every step of a training passes through it.

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
        if explained := misfit(error, self._model, self._batch):
            raise explained from error


def misfit(error: Exception, model: nn.Module, batch: object) -> MisfitError | None:
    """What an error of a forward pass says of the data, if it is about shapes or whole numbers.

    Args:
        error: as torch raised it.
        model: the model that was called; the layer that refused its input is told by its name.
        batch: what was given: a tensor, or a tuple, list or dictionary of tensors.

    Returns:
        The error to raise from it, in one sentence; None if it is about something else.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
        >>> try:
        ...     model(torch.zeros(5, 1, 2, 2))
        ... except RuntimeError as error:
        ...     print(misfit(error, model, torch.zeros(5, 1, 2, 2)))
        the data does not fit the model: layer '1' (Linear) expects 3 features, got an input of \
shape (5, 4), from a batch of shape (5, 1, 2, 2); give data of the shape the model was made for, \
or make the model for this shape.
    """
    message = str(error).strip().partition("\n")[0].rstrip(".")
    is_of_type = _TYPE_SIGNS.search(message)
    if not (is_of_type or _SIGNS.search(message)):
        return None
    name, layer, taken = _refusing(error.__traceback__, model)
    place = f"layer {name!r} ({type(layer).__name__})" if name else f"the {type(layer).__name__}"
    if is_of_type:
        return _of_whole_numbers(place, layer, taken)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors_of(batch)) or "no tensor"
    if layer is None:
        return MisfitError(
            f"the loss does not fit the model's output and the targets ({message}), for a batch of "
            f"shape {shapes}; give the model as many outputs as the targets need."
        )
    return MisfitError(
        f"the data does not fit the model: {place} {_expectation(layer, taken, message)}, from a "
        f"batch of shape {shapes}; give data of the shape the model was made for, or make the "
        "model for this shape."
    )


def _of_whole_numbers(
    place: str, layer: nn.Module | None, taken: Tensor | None
) -> MisfitError | None:
    """Whole numbers where a layer calculates; those of an embedding are names."""
    embeds = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    if layer is None or taken is None or embeds or taken.is_floating_point() or taken.is_complex():
        return None
    return MisfitError(
        f"the data does not fit the model: {place} got inputs that are whole numbers "
        f"({taken.dtype}) of shape {tuple(taken.shape)}; convert them with .float()."
    )


def _expectation(layer: nn.Module, taken: Tensor | None, message: str) -> str:
    """What the layer wants and what it got; in torch's words where ours would say less."""
    size = next((name for name in _SIZES if hasattr(layer, name)), None)
    dimensions = next((n for kind, n in _DIMENSIONS.items() if isinstance(layer, kind)), None)
    got = "" if taken is None else f", got an input of shape {tuple(taken.shape)}"
    if dimensions is not None and taken is not None and taken.dim() != dimensions:
        axes = ", ".join((*_AXES[:2], *_AXES[7 - dimensions :]))
        return f"expects {dimensions} dimensions ({axes}){got}"
    if size is None or taken is None or _fits(layer, size, taken):
        return f"refuses its input ({message}){got}"
    count = getattr(layer, size)
    return f"expects {count} {_SIZES[size]}{'' if count == 1 else 's'}{got}"


def _fits(layer: nn.Module, size: str, taken: Tensor) -> bool:
    """Whether the size is right, so that something else is wrong."""
    place = -1 if size == "in_features" else 1
    return taken.dim() > 1 and taken.shape[place] == getattr(layer, size)


def _refusing(
    traceback: TracebackType | None, model: nn.Module
) -> tuple[str, nn.Module | None, Tensor | None]:
    """Name, module and input of the innermost module of the model that the error passed."""
    names = {id(module): name for name, module in model.named_modules()}
    found: tuple[str, nn.Module | None, Tensor | None] = ("", None, None)
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_locals.get("self")
        if frame.f_code.co_name == "_wrapped_call_impl" and id(module) in names:
            given = frame.f_locals.get("args") or ()
            taken = next((part for part in given if isinstance(part, Tensor)), None)
            found = names[id(module)], module, taken
        traceback = traceback.tb_next
    return found


def require_module(model: object, caller: str | None = None) -> None:
    """Raise if the model is not an `nn.Module`.

    Args:
        model: what the user passed.
        caller: the name of the function, for the message; None if it has a ``model``.

    Raises:
        ArgumentTypeError: if it is something else.

    >>> require_module(nn.ReLU, "fold")
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: fold expects an nn.Module, got the class ReLU; make one ...
    """
    if isinstance(model, nn.Module):
        return
    came = type(model).__name__
    if isinstance(model, type):
        came = f"the class {model.__name__}; make one of it: {model.__name__}(...)"
    elif isinstance(model, str):
        came = f"the text {model!r}; build a registered model by normscope.models.build"
    expected = "the model must be" if caller is None else f"{caller} expects"
    raise ArgumentTypeError(f"{expected} an nn.Module, got {came}.")
