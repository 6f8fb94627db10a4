"""Endless sources of training batches: rows of one batch, a list of batches, or a DataLoader.

A source can be saved and restored. Its state is the RNG state at the start of the epoch and the
position within the epoch, so that a resumed run sees the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.problem.batch import Batch, map_tensors, move_batch, sample_count
from normscope.problem.isolation import RandomGenerators
from normscope.problem.problem import Problem
from normscope.validation import as_seed, check_integer

State = dict[str, Any]


class BatchSource(Protocol):
    """An endless source of batches whose state can be saved and restored."""

    def draw(self) -> Batch:
        """Return the next batch."""

    def state(self) -> State:
        """Return the state that determines the coming batches, as plain types and tensors."""

    def restore(self, state: State) -> None:
        """Continue from a state returned by `state`."""


def batch_source(
    problem: Problem, batch_size: int | None, seed: int, drop_last: bool
) -> BatchSource:
    """Return the source of training batches for a problem.

    Args:
        problem: model, loss and data.
        batch_size: samples per step, drawn from data that is one batch; None: the batches as
            given, or all of a single batch at once.
        seed: of the order; a DataLoader has its own order.
        drop_last: whether to drop the samples of an epoch that do not fill a batch.

    Returns:
        Rows in a new order every epoch; the batches of a list in a new order every epoch; or
        the batches of a loader in its own order.

    Raises:
        InputError: if the batch size does not fit the data, or the seed exceeds 64 bits.
    """
    seed = as_seed(seed)
    if batch_size is not None:
        return _row_batches(problem, batch_size, seed, drop_last)
    if not problem.is_in_memory:
        return _LoaderBatches(problem)
    device, dtype = problem.device, problem.dtype  # once: all batches were checked by the problem
    batches = [problem.prepare(problem.data)] if problem.is_one_batch else problem.data
    return _ShuffledBatches(
        len(batches),
        1,
        seed,
        drop_last=False,
        device=torch.device("cpu"),
        select=lambda index: move_batch(batches[int(index)], device, dtype),
    )


def _row_batches(problem: Problem, batch_size: int, seed: int, drop_last: bool) -> BatchSource:
    if not problem.is_one_batch:
        raise InputError(
            f"batch_size={batch_size} needs data in one batch (inputs, targets); a list of batches "
            "or a DataLoader has its own sizes: leave batch_size out."
        )
    check_integer("batch_size", batch_size)
    samples = sample_count(problem.data)
    if not 1 <= batch_size <= samples:
        raise InputError(
            f"batch_size must be from 1 to the {samples} samples of the data, got {batch_size}; "
            "leave it out for the whole data at every step."
        )
    data = problem.prepare(problem.data)

    def select(index: Tensor) -> Batch:  # unlike `rows`, without counting the samples every time
        return map_tensors(data, lambda tensor: tensor.index_select(0, index))

    return _ShuffledBatches(samples, int(batch_size), seed, drop_last, problem.device, select)


class _ShuffledBatches:
    """Batches selected by chunks of a random permutation, a new one every epoch.

    Args:
        count: number of indices to permute.
        size: indices per batch.
        seed: of the permutations.
        drop_last: whether to drop an incomplete last chunk.
        device: of the indices.
        select: returns the batch for a chunk of indices.
    """

    def __init__(
        self,
        count: int,
        size: int,
        seed: int,
        drop_last: bool,
        device: torch.device,
        select: Callable[[Tensor], Batch],
    ) -> None:
        self._count, self._size, self._device = count, size, device
        self._select = select
        self._generator = torch.Generator().manual_seed(int(seed))
        self._length = count // size if drop_last and count >= size else -(-count // size)
        self._start_epoch()

    def draw(self) -> Batch:
        if self._position == self._length:
            self._start_epoch()
        start = self._position * self._size
        self._position += 1
        return self._select(self._permutation[start : start + self._size])

    def _start_epoch(self) -> None:
        self._epoch_start = self._generator.get_state()
        permutation = torch.randperm(self._count, generator=self._generator)
        self._permutation = permutation.to(self._device)
        self._position = 0

    def state(self) -> State:
        return {"epoch_start": self._epoch_start, "position": self._position}

    def restore(self, state: State) -> None:
        self._generator.set_state(state["epoch_start"])
        self._start_epoch()
        self._position = state["position"]


class _LoaderBatches:
    """The batches of a DataLoader or another iterable, in its own order.

    Restoring restarts the epoch under the RNG state it had, then skips the batches already used.
    That is exact if the loader gives the same batches under the same state of torch's generators.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._iterator: Iterator[Batch] = iter(())
        self._random = RandomGenerators(problem.data)
        self._epoch_start: list[Tensor] | None = None
        self._position = 0

    def draw(self) -> Batch:
        for is_new_epoch in (False, True):
            if is_new_epoch:
                self._start_epoch()
            for batch in self._iterator:
                self._position += 1
                return self._problem.prepare(batch)
        raise InputError("the data loader gave no batch; give at least one.")

    def _start_epoch(self) -> None:
        self._epoch_start = self._random.torch_states()
        self._iterator = iter(self._problem.data)
        self._position = 0

    def state(self) -> State:
        return {"epoch_start": self._epoch_start, "position": self._position}

    def restore(self, state: State) -> None:
        if state["epoch_start"] is None:
            return
        self._random.set_torch_states(state["epoch_start"])
        self._start_epoch()
        for _ in range(state["position"]):
            next(self._iterator)
        self._position = state["position"]
