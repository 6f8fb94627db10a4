"""Whether a ``torch.func`` transform, forward-mode AD or a dispatch mode is running.

Only this module uses PyTorch's private modules for that: there is no public way to find out whether
a function is being transformed. The layers need to know, because the native batch normalization
kernels are silently wrong under some compositions (:mod:`normscope.layers.batch_norm_function`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# The module exists at run time only; its stubs differ between versions of PyTorch.
_functorch: Any = torch._C._functorch


def transform_active() -> bool:
    """Return whether the caller runs inside a ``torch.func`` transform (``grad``, ``vmap``).

    >>> transform_active()
    False
    >>> seen = []
    >>> _ = torch.func.vmap(lambda x: seen.append(transform_active()) or x)(torch.ones(2))
    >>> seen
    [True]
    """
    return _functorch.peek_interpreter_stack() is not None


# torch.compile enters transforms while it traces, but cannot trace this function. The mark makes
# it call the function at trace time and keep the result as a constant. (The public
# torch.compiler.assume_constant_result does the same, after a second of imports.)
transform_active._dynamo_marked_constant = True  # type: ignore[attr-defined]  # a function's flag


def forward_mode_active() -> bool:
    """Return whether forward-mode AD is active, by ``forward_ad`` or ``torch.func.jvp``.

    >>> forward_mode_active()
    False
    >>> with torch.autograd.forward_ad.dual_level():
    ...     forward_mode_active()
    True
    """
    level: int = forward_ad._current_level
    return level >= 0


def tracing_active() -> bool:
    """Return whether operations are being recorded or intercepted, so that values must not be read.

    True under ``torch.jit.trace`` and under any dispatch mode (fake tensors, ``make_fx``, ...).

    >>> tracing_active()
    False
    """
    modes: int = torch._C._len_torch_dispatch_stack()
    return modes > 0 or torch._C._get_tracing_state() is not None


def eager() -> bool:
    """Return whether operations run directly: none of the above is active and nothing is compiled.

    One function instead of four, because small layers call it in every forward pass.

    >>> eager()
    True
    >>> with torch.autograd.forward_ad.dual_level():
    ...     eager()
    False
    """
    return not (
        torch.compiler.is_compiling()  # first: the others cannot be compiled
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
    )


def stands_for_several(gradient: Tensor) -> bool:
    """Return whether a gradient is a batch of gradients, by a transform or by ``is_grads_batched``.

    No graph is recorded of a custom autograd function that is called on such a gradient. What is to
    be differentiated again must be written in PyTorch's operations.

    >>> stands_for_several(torch.ones(2))
    False
    """
    # torch.autograd.grad uses an older kind of batched tensor, without a transform
    return transform_active() or bool(_functorch.is_legacy_batchedtensor(gradient))


def belongs_to_innermost_transform(tensor: Tensor) -> bool:
    """Return whether the innermost transform passed this tensor to its function.

    Only such a tensor may be written in place; one captured from outside must not be.

    >>> captured = torch.zeros(2)
    >>> def both(x):
    ...     print(belongs_to_innermost_transform(x), belongs_to_innermost_transform(captured))
    ...     return x.sum()
    >>> _ = torch.func.grad(both)(torch.ones(2))
    True False
    """
    level: int | None = _functorch.maybe_current_level()
    return level is not None and _functorch.maybe_get_level(tensor) == level


def writable(buffer: Tensor) -> bool:
    """Return whether a buffer may be written in place; transforms forbid it when captured.

    >>> writable(torch.zeros(2))
    True
    """
    return not transform_active() or belongs_to_innermost_transform(buffer)
