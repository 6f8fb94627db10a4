"""Calls of the kernels on tensors; None (or False) means that the caller must compute instead."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.layers.compiled.build import library
from normscope.layers.standardize import LARGEST_RATIO
from normscope.layers.transforms import tracing_active, transform_active

# A megabyte, about the cache of one core. The best threshold has not been measured.
LARGEST = 1 << 18

_LANES = 16  # floats of a vector register

_NUMBERS_PER_THREAD = 1 << 15  # as in PyTorch: waking a thread for less costs more than it saves

# Before centring the scale is at least the mean's size; near it, the spread may be small.
LARGEST_UNCENTRED_RATIO = 0.99

_ORDERS = {math.inf: 0, 1.0: 1, 2.0: 2}
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_pointer, _long, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SHAPE = (_long, _long, _long, _int, _int, _int)


@functools.cache
def _kernel(name: str) -> Any:
    """Return a function of the library with its types declared, or None."""
    loaded = library()
    if loaded is None:
        return None
    types: dict[str, tuple[Any, ...]] = {
        "forward": (*(_pointer,) * 3, *_SHAPE, *(ctypes.c_double,) * 2, *(_pointer,) * 4),
        "backward": (*(_pointer,) * 6, *_SHAPE, *(_pointer,) * 3),
        "sums": (*(_pointer,) * 2, _long, _long, _int, _pointer),
        "noise": (*(_pointer,) * 3, _long, _long, *(ctypes.c_float,) * 2, *(_pointer,) * 2),
    }
    function = getattr(loaded, f"normscope_{name}")
    function.argtypes = types[name]
    return function


def compiled_output(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None] | None:
    """Return the results of :func:`normscope.layers.lp_function.fused_output`, or None.

    None also where rounding may have cost the output much of its spread (see spread_is_lost).
    The caller makes sure that no transform, compiler or tracer is active.
    """
    shape = _lp_shape(x, order, weight, bias)
    if shape is None:
        return None
    output = torch.empty_like(x)
    mean, size = x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    largest = x.new_empty(x.shape[1]) if order == math.inf else None
    inputs, results = (x, weight, bias), (output, mean, size, largest)
    limit = LARGEST_RATIO[x.dtype] if centred else LARGEST_UNCENTRED_RATIO
    refused = _kernel("forward")(
        *map(_address, inputs), *shape, centred, eps, limit, *map(_address, results)
    )
    return None if refused else results


def compiled_gradient(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    statistics: tuple[Tensor, Tensor, Tensor | None],
    order: float,
    centred: bool,
    input_needed: bool,
) -> tuple[Tensor | None, Tensor, Tensor] | None:
    """Return the results of :func:`normscope.layers.lp_function.fused_gradient`, or None."""
    if transform_active() or tracing_active():  # a batched gradient has no memory address
        return None
    shape = _lp_shape(x, order, weight, *statistics)
    if shape is None or not _plain(gradient) or gradient.stride() != x.stride():
        return None
    result = torch.empty_like(x) if input_needed else None
    to_weight, to_bias = x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    inputs = gradient, x, weight, *statistics
    refused = _kernel("backward")(
        *map(_address, inputs), *shape, centred, *map(_address, (result, to_weight, to_bias))
    )
    return None if refused else (result, to_weight, to_bias)


def compiled_noise(
    state: np.ndarray[Any, np.dtype[np.uint64]],
    unit_factor: Tensor,
    unit_shift: Tensor,
    jitters: tuple[float, float],
    factor: Tensor,
    shift: Tensor,
) -> bool:
    """Fill factor and shift, (samples, units, ...), from the state and advance it; or False.

    Args:
        state: the four numbers of SFC64.
        unit_factor: (units, ...), one number per element of a sample.
        unit_shift: likewise.
        jitters: spread of the factors, and of the shifts per unit of a random int32.
        factor: contiguous, for the factors.
        shift: contiguous, for the shifts.

    Returns:
        Whether there is such a kernel, and it can reach the tensors.
    """
    kernel = None if transform_active() else _kernel("noise")
    if kernel is None:
        return False
    units = unit_factor.data_ptr(), unit_shift.data_ptr()
    shape = len(factor), unit_factor.numel()
    kernel(state.ctypes.data, *units, *shape, *jitters, factor.data_ptr(), shift.data_ptr())
    return True


def compiled_sums(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the sums per channel of the product of two batches and of the first one, or None.

    Args:
        one: (batch, channels, ...), the channels neighbours in memory.
        other: laid out alike.

    Returns:
        The two vectors, from one reading of both batches; None: not for the kernel.
    """
    if not (_plain(one) and _plain(other)) or one.numel() == 0 or one.dim() < 2:
        return None
    alike = one.shape == other.shape and one.stride() == other.stride()
    innermost = one.is_contiguous() if one.dim() == 2 else is_channels_last(one)
    if not (alike and innermost) or transform_active() or tracing_active():
        return None
    kernel = _kernel("sums")
    if kernel is None:
        return None
    count, channels = one.numel(), one.shape[1]
    threads = _threads_for(count)
    shares = torch.empty(threads, 2, channels, dtype=torch.float64, device="cpu")
    rows = count // channels
    kernel(one.data_ptr(), other.data_ptr(), rows, channels, threads, shares.data_ptr())
    products, totals = shares.sum(0).to(one.dtype)
    return products, totals


def faster_sums(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return `compiled_sums`, but None where PyTorch's kernel is as fast.

    That is so for vectors, and for images whose channels fill the lanes of a processor; with 30
    channels ours takes a third of the time, with 3 a thirtieth.
    """
    if one.dim() <= 2 or one.shape[1] % _LANES == 0:
        return None
    return compiled_sums(one, other)


def is_channels_last(x: Tensor) -> bool:
    """Return whether images or volumes are dense with the channels innermost."""
    last = _CHANNELS_LAST.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last)


def _threads_for(count: int) -> int:
    return min(torch.get_num_threads(), 1 + count // _NUMBERS_PER_THREAD)


def _lp_shape(x: Tensor, order: float, *vectors: Tensor | None) -> tuple[int, ...] | None:
    """Return rows, channels, inner positions, order number, threads; None: not for the kernel."""
    number, count = _ORDERS.get(order), x.numel()
    if number is None or not 0 < count <= LARGEST or not _plain(x):
        return None
    samples, channels = x.shape[:2]
    for vector in vectors:
        if vector is not None and not (
            _plain(vector) and vector.numel() == channels and vector.is_contiguous()
        ):
            return None
    if _kernel("forward") is None:
        return None
    threads = _threads_for(count)
    if x.is_contiguous():
        return samples, channels, count // (samples * channels), number, threads
    if is_channels_last(x):
        return count // channels, channels, 1, number, threads
    return None


def _plain(tensor: Tensor) -> bool:
    """Return whether the tensor is plain float32 data in the memory of this process."""
    return (
        tensor.dtype is torch.float32
        and tensor.is_cpu
        and type(tensor) in _PLAIN_TYPES
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
