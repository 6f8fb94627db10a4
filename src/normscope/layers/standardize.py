r"""Standardization over a batch, by its definition forward and in closed form backward.

.. math::
    \mu = \frac1m \sum_i x_i, \quad \sigma^2 = \frac1m \sum_i (x_i - \mu)^2, \quad
    \hat x_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}

The batch may be shared by several processes. Only one operation crosses processes, the sum over all
of them. It is its own adjoint, so gradients of every order are summed the same way.

Reference: ioffe2015, Alg. 1 (forward) and Section 3 (gradients); santurkar2018, Fact C.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from normscope.errors import ArgumentTypeError, StateError
from normscope.layers.transforms import forward_mode_active

# Largest |mean| / spread up to which a kernel that does not subtract the mean first is used:
# rounding then costs an output at most about 3e-5 of the spread.
LARGEST_RATIO = {dtype: 3e-5 / torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}

ProcessGroup: TypeAlias = Any  # torch.distributed.ProcessGroup, absent where torch is built without
GroupChoice: TypeAlias = ProcessGroup | Literal["world"] | None


class Batch(Protocol):
    """The samples to average over: those of one process, or of a process group."""

    @property
    def count(self) -> int:
        """Values per channel, over all processes."""

    def reduce(
        self, averaged: Sequence[Tensor], summed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return averages per channel, broadcastable, then sums over processes."""


def channel_axes(dimensions: int) -> tuple[int, ...]:
    """Return the axes a channel is averaged over: all but axis 1.

    >>> channel_axes(4)
    (0, 2, 3)
    """
    return (0, *range(2, dimensions))


def along_channels(vector: Tensor, like: Tensor) -> Tensor:
    """Return one value per channel, shaped to broadcast against (batch, channels, ...).

    >>> along_channels(torch.ones(3), torch.zeros(2, 3, 4)).shape
    torch.Size([3, 1])
    """
    # A vector broadcasts against a matrix as it is, which saves a small layer the view.
    return vector if like.dim() == 2 else vector.reshape(-1, *(1,) * (like.dim() - 2))


@dataclass(frozen=True)
class LocalBatch:
    """The batch of this process alone."""

    count: int

    @classmethod
    def of(cls, values: Tensor) -> LocalBatch:
        """Return the batch that consists of these values, (batch, channels, ...)."""
        return cls(count=values.size(0) * values.shape[2:].numel())

    def reduce(
        self, averaged: Sequence[Tensor], summed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return averages per channel, then the sums unchanged: there is no other process."""
        means = (tensor.mean(channel_axes(tensor.dim()), keepdim=True) for tensor in averaged)
        return *means, *summed


@dataclass(frozen=True)
class SynchronizedBatch:
    """The common batch of a process group; each process holds a part of any size."""

    count: int
    group: ProcessGroup

    @classmethod
    def of(cls, values: Tensor, group: ProcessGroup) -> SynchronizedBatch:
        """Return the common batch of which these values, (batch, channels, ...), are one part."""
        local = values.size(0) * values.shape[2:].numel()
        count = torch.tensor(local, device=values.device)  # int64: exact beyond 2**24 values
        dist.all_reduce(count, group=group)
        return cls(count=int(count), group=group)

    def reduce(
        self, averaged: Sequence[Tensor], summed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return averages per channel over the common batch, then sums, in one communication."""
        sums = [tensor.sum(channel_axes(tensor.dim()), keepdim=True) for tensor in averaged]
        totals = sum_over_processes(torch.stack([*sums, *summed]), self.group).unbind()
        return *(total / self.count for total in totals[: len(sums)]), *totals[len(sums) :]


class SumOverProcesses(torch.autograd.Function):
    """Sum of a tensor over all processes of a group; every process gets the same result."""

    @staticmethod
    def forward(tensor: Tensor, group: ProcessGroup) -> Tensor:
        """Return the sum in a new tensor."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the group."""
        del output
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients: the result of every process depends on this input."""
        return sum_over_processes(gradient, ctx.group), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], tensor: Tensor, group: ProcessGroup
    ) -> tuple[Tensor, int | None]:
        """Sum as usual: it is elementwise, so a batch axis changes nothing."""
        del info
        return sum_over_processes(tensor, group), in_dims[0]


def sum_over_processes(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum of a tensor over all processes of a group, differentiable to every order.

    Raises:
        StateError: under forward-mode AD, which would be wrong from the second order on.
    """
    if forward_mode_active():
        raise StateError(
            "statistics shared by processes have no forward-mode derivatives (jvp, jacfwd, "
            "hessian); use reverse mode, or process_group=None."
        )
    total: Tensor = SumOverProcesses.apply(  # type: ignore[no-untyped-call]
        tensor, group
    )  # PyTorch does not annotate apply
    return total


def checked_choice(process_group: GroupChoice) -> GroupChoice:
    """Return the choice if it can name a process group.

    Raises:
        ArgumentTypeError: if it is not None, "world" or a process group.

    >>> checked_choice("world")
    'world'
    """
    if process_group is None or process_group == "world":
        return process_group
    if dist.is_available() and isinstance(process_group, dist.ProcessGroup):
        return process_group
    raise ArgumentTypeError(
        "process_group must be None, 'world' or a torch.distributed.ProcessGroup that this "
        f"process belongs to, got {process_group!r}."
    )


def resolved_group(process_group: GroupChoice) -> ProcessGroup | None:
    """Return the group to synchronize over, or None if there is nothing to synchronize.

    "world" is resolved at each call, so that a model can be built before
    ``torch.distributed`` is initialized.

    Raises:
        StateError: if ``torch.distributed`` is not initialized, or this process is not in the
            group.

    >>> resolved_group(None) is None
    True
    """
    if process_group is None:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise StateError(
            "process_group is set but torch.distributed is not initialised; call "
            "torch.distributed.init_process_group first, or use process_group=None."
        )
    group = dist.group.WORLD if isinstance(process_group, str) else process_group
    size = dist.get_world_size(group)
    if size < 1:
        raise StateError("this process is not a member of process_group; give it its own group.")
    return group if size > 1 else None


def standardize_by_definition(
    values: Tensor, eps: float, batch: Batch
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return standardized values, mean and 1/m variance, in plain differentiable operations.

    The two passes are corrected: the rounding error of the computed mean is the average of the
    deviations, and is subtracted from them. Values of 1e4 with a spread of 1e-2 keep their digits.

    Reference: chan1983, the corrected two-pass algorithm.

    Args:
        values: (batch, channels, ...), float32 or float64.
        eps: added to the variance.
        batch: what to average over.

    Returns:
        The standardized values, and mean and variance of shape (1, channels, 1, ...).

    >>> values = torch.tensor([[0.0], [2.0]])
    >>> standardized, mean, variance = standardize_by_definition(values, 0.0, LocalBatch.of(values))
    >>> standardized.flatten().tolist(), mean.item(), variance.item()
    ([-1.0, 1.0], 1.0, 1.0)
    """
    (mean,) = batch.reduce([values])
    deviation = values - mean
    residual, square = batch.reduce([deviation, deviation * deviation])
    deviation = deviation - residual
    # The correction may leave -1e-20 where all values are equal; NaN stays NaN.
    variance = (square - residual * residual).clamp_min(0.0)
    return deviation * torch.rsqrt(variance + eps), mean + residual, variance


class Standardize(torch.autograd.Function):
    r"""Standardized values, mean and variance, with hand-written derivatives of every order.

    With :math:`h, a, v` the gradients that arrive at :math:`\hat x, \mu, \sigma^2` and
    :math:`\langle\cdot\rangle` the average over the batch,

    .. math::
        \frac{\partial L}{\partial x} = \frac1s \left(h - \langle h \rangle
        - \hat x \langle h \hat x \rangle\right) + \frac{a}{m} + \frac{2 v s \hat x}{m},
        \quad s = \sqrt{\sigma^2 + \epsilon}.

    The backward pass uses differentiable operations on the function's outputs, so double and
    higher backward are exact. PyTorch's native kernel keeps mean and 1/s as constants, which
    makes third derivatives wrong.

    Reference: santurkar2018, Fact C.1; ioffe2015, Section 3.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, eps: float, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of :func:`standardize_by_definition`."""
        return standardize_by_definition(values, eps, batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the outputs, from which all derivatives are computed."""
        _, ctx.eps, ctx.batch = inputs
        standardized, _, variance = output
        ctx.save_for_backward(standardized, variance)

    @staticmethod
    def backward(
        ctx: Any, to_standardized: Tensor, to_mean: Tensor, to_variance: Tensor
    ) -> tuple[Tensor | None, None, None]:
        """Return the gradient of the values from the gradients of the three results."""
        if not ctx.needs_input_grad[0]:
            return None, None, None
        standardized, variance = ctx.saved_tensors
        scale = torch.rsqrt(variance + ctx.eps)
        batch = ctx.batch
        average, projection, to_mean, to_variance = batch.reduce(
            [to_standardized, to_standardized * standardized], summed=[to_mean, to_variance]
        )
        constant = scale * average - to_mean / batch.count
        slope = scale * projection - 2.0 * to_variance / (scale * batch.count)
        return scale * to_standardized - constant - slope * standardized, None, None


def standardize(values: Tensor, eps: float, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Standardize values; return them, mean and variance, differentiated in closed form.

    Forward mode differentiates the definition instead, operation by operation.

    Args:
        values: (batch, channels, ...), float32 or float64.
        eps: added to the variance.
        batch: what to average over.

    Returns:
        As :func:`standardize_by_definition`.

    >>> values = torch.tensor([[0.0], [2.0]], requires_grad=True)
    >>> standardized, _, _ = standardize(values, 0.0, LocalBatch.of(values))
    >>> (standardized ** 3).sum().backward()
    >>> values.grad.flatten().tolist()  # two values always standardize to -1 and 1
    [0.0, 0.0]
    """
    # PyTorch turns forward mode off inside a Function's own jvp, so that a jvp of a jvp would
    # silently be zero; and torch.compile cannot trace every Function.
    if forward_mode_active() or torch.compiler.is_compiling():
        return standardize_by_definition(values, eps, batch)
    results: tuple[Tensor, Tensor, Tensor] = Standardize.apply(  # type: ignore[no-untyped-call]
        values, eps, batch
    )  # PyTorch does not annotate apply
    return results
