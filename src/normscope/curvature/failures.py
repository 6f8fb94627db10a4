"""What goes wrong inside a user's model or loss, said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from normscope.curvature.batch import Batch, tensors_of
from normscope.errors import InputError, NormscopeError, StateError

__all__ = ["check_finite", "explained", "is_finite", "no_gradient"]

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
