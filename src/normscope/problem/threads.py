"""The number of CPU threads that suits a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from normscope.problem.batch import Batch, copy_batch
from normscope.problem.problem import Problem

ONE_THREAD = 100e6
"""Floating-point operations of a forward pass below which one thread computes it.

Several threads wait for each other at every operation. On two idle cores two threads take as long
as one at 34 million operations, and 0.8 of that at 120 million; beside other work that takes the
cores they took 3 to 900 times as long (benchmarks/threads.py)."""


def suitable_threads(problem: Problem, batch: Batch) -> int:
    """Return 1 for a small network on the CPU, and torch's present number of threads for others.

    It depends on the network and the batch alone, so that results do not vary with the load of the
    machine. Operations are counted in one forward pass.

    Args:
        problem: model and loss; the caller isolates them.
        batch: one of its batches.
    """
    present = torch.get_num_threads()
    if present == 1 or problem.device.type != "cpu":
        return present
    try:
        with torch.no_grad(), _OperationCount() as count:
            problem.loss_on(copy_batch(problem.prepare(batch)))
    except Exception:  # of the user's code; what follows reports it
        return present
    return 1 if count.total < ONE_THREAD else present


_FUSED = (torch.ops.aten.mkldnn_rnn_layer, torch.ops.aten._transformer_encoder_layer_fwd)


class _OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts floating-point operations of this thread.

    torch's FlopCounterMode adds hooks to the modules of all threads, and counts none in `_FUSED`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and add its count."""
        result = operation(*args, **(kwargs or {}))
        formula = flop_registry.get(operation.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        elif operation.overloadpacket in _FUSED:
            inputs, *others = (each for each in args if isinstance(each, Tensor))
            weights = sum(each.numel() for each in others if each.dim() == 2)
            self.total += 2 * weights * inputs.shape[:-1].numel()
        return result


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute with so many threads, and restore torch's number on exit.

    Only the calling thread is concerned, and those that use torch for the first time inside.
    """
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    try:
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)
