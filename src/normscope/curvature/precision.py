"""The precision of a measurement: that of the parameters, and float64 where rounding is in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch off an autocast around the measurement: curvature has the precision of the parameters.

    An autocast inside the model's own forward pass stays.

    Yields:
        Nothing.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast():
    ...     (torch.ones(2, 2) @ torch.ones(2)).dtype
    torch.float32
    """
    with ExitStack() as stack:
        for kind in _DEVICE_TYPES:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
