"""Batch statistics over several processes, differentiable to every order.

One operation crosses processes, the sum over all of them. It is its own adjoint, so a gradient
that flows back through it is summed the same way, and so is the gradient of that gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from normscope.errors import ArgumentTypeError, StateError
from normscope.layers.standardize import channel_axes
from normscope.layers.transforms import forward_mode_active

ProcessGroup: TypeAlias = Any  # torch.distributed.ProcessGroup, absent where torch is built without
GroupChoice: TypeAlias = ProcessGroup | Literal["world"] | None


def checked_choice(process_group: GroupChoice) -> GroupChoice:
    """The choice itself, if it can name a process group at all.

    Raises:
        ArgumentTypeError: if it is neither None, "world" nor a process group.

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
    """The group to synchronise over, or None where there is nothing to synchronise.

    "world" is looked up now, not when the layer was made, so that a model may be built before
    the processes have met.

    Raises:
        StateError: if the processes have not met, or this one is not in the group.

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


class SumOverProcesses(torch.autograd.Function):
    """Sum of a tensor over all processes of a group; the result is the same in each."""

    @staticmethod
    def forward(tensor: Tensor, group: ProcessGroup) -> Tensor:
        """The sum, in a new tensor."""
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
        """The sum of the gradients: every process's result depends on this one's input."""
        return sum_over_processes(gradient, ctx.group), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], tensor: Tensor, group: ProcessGroup
    ) -> tuple[Tensor, int | None]:
        """The sum is taken element by element, so a further axis changes nothing."""
        del info
        return sum_over_processes(tensor, group), in_dims[0]


def sum_over_processes(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Sum of a tensor over all processes of a group, differentiable to every order.

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


@dataclass(frozen=True)
class SynchronizedBatch:
    """The batch that the processes of a group hold together, each a part of its own size."""

    count: int
    group: ProcessGroup

    @classmethod
    def of(cls, values: Tensor, group: ProcessGroup) -> SynchronizedBatch:
        """The common batch, of which these values, (batch, channels, ...), are this part."""
        local = values.size(0) * values.shape[2:].numel()
        count = torch.tensor(local, device=values.device)  # int64: exact beyond 2**24 values
        dist.all_reduce(count, group=group)
        return cls(count=int(count), group=group)

    def reduce(
        self, averaged: Sequence[Tensor], summed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Averages per channel over the common batch, then sums; all in one communication."""
        sums = [tensor.sum(channel_axes(tensor.dim()), keepdim=True) for tensor in averaged]
        totals = sum_over_processes(torch.stack([*sums, *summed]), self.group).unbind()
        return *(total / self.count for total in totals[: len(sums)]), *totals[len(sums) :]
