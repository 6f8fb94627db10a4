"""Where the batches of a training come from: rows of one batch, a list, or a loader.

Every source goes through its data epoch by epoch, without end. Its state is the random state at
the start of the epoch and the place within it, so that a resumed run sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.problem.batch import Batch, rows, sample_count
from normscope.problem.problem import Problem
from normscope.validation import check_integer

__all__ = ["BatchSource", "batch_source"]

State = dict[str, Any]


class BatchSource(Protocol):
    """An endless supply of batches that can be left and found again."""

    def draw(self) -> Batch:
        """The next batch."""

    def state(self) -> State:
        """All that decides the batches to come, in plain types and tensors."""

    def restore(self, state: State) -> None:
        """Go on from where `state` was taken."""


def batch_source(
    problem: Problem, batch_size: int | None, seed: int, drop_last: bool
) -> BatchSource:
    """The source of batches for a problem.

    Args:
        problem: model, loss and data.
        batch_size: samples per step, drawn from data that is one batch; None: the batches as they
            are given, all of one batch at once.
        seed: of the order; a DataLoader has its own order.
        drop_last: whether the rest of an epoch that does not fill a batch is left out.

    Returns:
        Rows in a new order every epoch; a list's batches in a new order every epoch; or a
        loader's batches in its own order.

    Raises:
        InputError: if the batch size does not fit the data, or the seed not into 64 bits.
    """
    check_integer("seed", seed)
    if not -(2**63) <= seed < 2**64:
        raise InputError(f"seed must be from -2**63 to 2**64 - 1, got {seed}.")
    if batch_size is None:
        return _ListBatches(problem, seed) if _in_memory(problem) else _LoaderBatches(problem)
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
    return _RowBatches(
        problem, _SeededOrder(samples, int(batch_size), seed, drop_last, problem.device)
    )


def _in_memory(problem: Problem) -> bool:
    return problem.is_one_batch or isinstance(problem.data, list)


class _SeededOrder:
    """Pieces of a random permutation of ``count`` indices, a new one every epoch."""

    def __init__(
        self, count: int, size: int, seed: int, drop_last: bool, device: torch.device
    ) -> None:
        self._count, self._size, self._device = count, size, device
        self._whole_only = drop_last
        self._generator = torch.Generator().manual_seed(int(seed))
        self._pieces: tuple[Tensor, ...]
        self._start_epoch()

    def draw(self) -> Tensor:
        if self._position == len(self._pieces):
            self._start_epoch()
        self._position += 1
        return self._pieces[self._position - 1]

    def _start_epoch(self) -> None:
        self._epoch_start = self._generator.get_state()
        permutation = torch.randperm(self._count, generator=self._generator).to(self._device)
        pieces = torch.split(permutation, self._size)
        drop = self._whole_only and len(pieces[-1]) < self._size
        self._pieces = pieces[:-1] if drop else pieces
        self._position = 0

    def state(self) -> State:
        return {"epoch_start": self._epoch_start, "position": self._position}

    def restore(self, state: State) -> None:
        self._generator.set_state(state["epoch_start"])
        self._start_epoch()
        self._position = state["position"]


class _RowBatches:
    """Samples of one batch in memory, in a new order every epoch."""

    def __init__(self, problem: Problem, order: _SeededOrder) -> None:
        self._data = problem.placed(problem.data)
        self._order = order
        self.state, self.restore = order.state, order.restore

    def draw(self) -> Batch:
        return rows(self._data, self._order.draw())


class _ListBatches:
    """The batches of a list, in a new order every epoch; one batch alone is a list of one."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._place = problem.placed
        self._batches = [problem.placed(problem.data)] if problem.is_one_batch else problem.data
        order = _SeededOrder(len(self._batches), 1, seed, False, torch.device("cpu"))
        self._order = order
        self.state, self.restore = order.state, order.restore

    def draw(self) -> Batch:
        return self._place(self._batches[int(self._order.draw())])


class _LoaderBatches:
    """The batches of a DataLoader or another iterable, in its own order.

    To go on after a resumption, the epoch is begun again under the random state it had and the
    batches already used are read and thrown away. That is exact if the loader gives the same
    batches under the same state of torch's generators.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._iterator: Iterator[Batch] = iter(())
        self._epoch_start: dict[str, Tensor] | None = None
        self._position = 0

    def draw(self) -> Batch:
        for batch in self._iterator:
            self._position += 1
            return self._problem.placed(batch)
        self._start_epoch()
        for batch in self._iterator:
            self._position += 1
            return self._problem.placed(batch)
        raise InputError("the data loader gave no batch; give at least one.")

    def _start_epoch(self) -> None:
        self._epoch_start = {"torch": torch.get_rng_state()} | {
            name: generator.get_state() for name, generator in self._generators().items()
        }
        self._iterator = iter(self._problem.data)
        self._position = 0

    def _generators(self) -> dict[str, torch.Generator]:
        """The generators a DataLoader owns besides torch's global one."""
        loader = self._problem.data
        owners = {"loader": loader, "sampler": getattr(loader, "sampler", None)}
        found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
        return {name: g for name, g in found.items() if isinstance(g, torch.Generator)}

    def state(self) -> State:
        return {"epoch_start": self._epoch_start, "position": self._position}

    def restore(self, state: State) -> None:
        if state["epoch_start"] is None:
            return
        for name, generator in self._generators().items():
            generator.set_state(state["epoch_start"][name])
        torch.set_rng_state(state["epoch_start"]["torch"])
        self._start_epoch()
        for _ in range(state["position"]):
            next(self._iterator)
        self._position = state["position"]
