"""The loss at points of a line or plane through the weights, in any mode, without side effects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.errors import InputError, StateError
from normscope.layers.population import PopulationAverages, layers_with_statistics
from normscope.problem.batch import Batch, batch_count, copy_batch, tensors_of
from normscope.problem.error_messages import explain_errors
from normscope.problem.evaluate import Evaluator
from normscope.problem.isolation import RandomGenerators, isolated, substitute
from normscope.problem.loss_state import loss_modules
from normscope.problem.modes import in_mode
from normscope.problem.parameters import ParameterLayout
from normscope.problem.problem import Problem
from normscope.registry import unknown_name

MODES = ("train", "population", "eval", "as_is")
"""How the statistics of BatchNorm are taken at each point of a surface."""

Point = tuple[float, ...]

STACK = 64
"""Points of one pass with stacked weights."""
_MOST_PRODUCTS = 1_000_000  # of a weight and a sample, for which stacking is faster
_LARGEST_KEPT = 2**25 - 2**16  # bytes, just below the largest block that glibc learns from
_DENSE = (nn.Linear, nn.LayerNorm, nn.modules.batchnorm._NormBase)


def check_surface_mode(mode: str) -> None:
    """Raise an error for a mode that a surface does not have.

    Raises:
        StateError: for "frozen", whose values are those of "train".
        UnknownNameError: if there is no such mode.
    """
    if mode == "frozen":
        raise StateError(
            "mode='frozen' differs from 'train' in derivatives alone, and a surface has none; use "
            "mode='train' for the batch's statistics or 'eval' for the running ones."
        )
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)


@dataclass(frozen=True)
class DataSummary:
    """Sizes and checksums of the data.

    Args:
        factors: of the batches in the total loss.
        batch_size: samples in the largest batch.
        samples: in all batches.
        digests: checksums of the batches.
    """

    factors: tuple[float, ...]
    batch_size: int
    samples: int
    digests: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plane:
    """Evaluates the loss on a line or plane through the weights of a model.

    Weights and buffers are copied at the first evaluation. Workers receive a pickled plane.

    Args:
        problem: model, loss and data.
        layout: the parameters that move.
        directions: flat vectors over the layout, one for each axis.
        mode: "train", "population", "eval" or "as_is".
        seed: of dropout, noise and the data's order: the same draws at every point.
        stack: points in one pass with stacked weights (``torch.func.vmap``); 1: no stacking.
    """

    problem: Problem
    layout: ParameterLayout
    directions: tuple[Tensor, ...]
    mode: str = "train"
    seed: int = 0
    stack: int = 1

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator at the centre, with the flags of the mode."""
        mode = "eval" if self.mode == "population" else self.mode
        return Evaluator(self.problem, self.layout, mode, self.seed)

    @cached_property
    def data(self) -> DataSummary:
        """Factors, sizes and checksums of the batches; reads the data once."""
        weights, sizes, digests = [], [], []
        for _, batch in self.evaluator.batches():
            weights.append(self.problem.weight_of(batch))
            sizes.append(batch_count(batch))
            digests.append(checksum(tensors_of(batch)))
        factors = tuple(self.problem.batch_factors(weights))
        return DataSummary(factors, max(sizes), sum(sizes), tuple(digests))

    @property
    def rounding(self) -> float:
        """Relative rounding of a loss: that of the coarsest dtype the model computes in."""
        weights = self.problem.model.parameters()
        dtypes = {each.dtype for each in weights if each.is_floating_point()}
        device = self.layout.device.type
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
        return max(float(torch.finfo(each).eps) for each in dtypes)

    def along(self, directions: Sequence[Tensor], stack: int = 1) -> Plane:
        """Return the plane with other directions through the same weights."""
        other = replace(self, directions=tuple(directions), stack=stack)
        other.__dict__["evaluator"] = self.evaluator
        other.__dict__["data"] = self.data
        return other

    def digest(self) -> str:
        """Return a checksum of weights, buffers, directions, what they move, and data."""
        weights = checksum((*self.evaluator.point.values(), *self.directions))
        whole = " ".join((weights, *self.layout.names, *self.data.digests))
        return hashlib.sha256(whole.encode()).hexdigest()[:32]

    def losses(self, points: Sequence[Point]) -> np.ndarray:
        """Return the loss over all batches at every point; not finite where it overflows.

        The data is read once for all points (twice with population statistics).

        Args:
            points: coordinates along the directions.

        Returns:
            One value for each point, in double precision.
        """
        _keep_freed_memory()
        averages: list[PopulationAverages] = []
        if self.mode == "population":
            layers = layers_with_statistics(self.problem.model)
            averages = [PopulationAverages(layers) for _ in points]
            for number, batch in self._batches():
                with self._prepared(number) as weights:
                    for at, average in zip(points, averages, strict=True):
                        weights.move(at)
                        with average.measuring():
                            self.problem.loss_on(copy_batch(batch))
        total = torch.zeros(len(points), dtype=torch.float64)
        for number, batch in self._batches():
            if factor := self.data.factors[number]:
                total += factor * self._batch_losses(number, batch, points, averages)
        return total.numpy()

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch with its number; raise if a DataLoader's batches have changed."""
        expected = self.data.digests
        for number, batch in self.evaluator.batches():
            seen = number < len(expected) and expected[number]
            if not self.problem.is_in_memory and checksum(tensors_of(batch)) != seen:
                raise StateError(
                    f"batch {number} of the data changes each time it is read, so points are not "
                    "comparable; give a list of batches, or make the DataLoader's augmentation "
                    "draw from torch's generator."
                )
            yield number, batch

    def _batch_losses(
        self,
        number: int,
        batch: Batch,
        points: Sequence[Point],
        averages: Sequence[PopulationAverages],
    ) -> Tensor:
        """Return the loss on one batch at every point."""
        found = []
        with self._prepared(number) as weights:
            if self.stack > 1:
                return torch.cat([weights.losses(batch, each) for each in self._stacks(points)])
            for index, at in enumerate(points):
                weights.move(at)
                if averages and not _use(averages[index]):
                    found.append(torch.tensor(torch.nan))
                    continue
                found.append(self.problem.loss_on(copy_batch(batch)).detach().clone())
        return torch.stack([each.to("cpu", torch.float64) for each in found])

    def _stacks(self, points: Sequence[Point]) -> list[Sequence[Point]]:
        return [points[low : low + self.stack] for low in range(0, len(points), self.stack)]

    @contextmanager
    def _prepared(self, number: int) -> Iterator[_Weights]:
        """Set the model up to run at several points on one batch, without side effects."""
        model, evaluator = self.problem.model, self.evaluator
        modules = loss_modules(self.problem.loss, model)
        with (
            isolated(model, *modules, tensors=dict(evaluator.point), seed=self.seed + number),
            in_mode(model, evaluator.mode, False, evaluator.flags),
            torch.inference_mode(False),
            torch.enable_grad(),  # no parameter requires a gradient; a model may need its own
            explain_errors(),
        ):
            yield _Weights(self, self.seed + number)


class _Weights:
    """The weights of the model inside an isolation.

    Args:
        plane: the directions, and the weights at the centre.
        seed: of the model's random draws at every point.
    """

    def __init__(self, plane: Plane, seed: int) -> None:
        self._problem = plane.problem
        self._evaluator, self._directions = plane.evaluator, plane.directions
        self._random, self._seed = RandomGenerators(plane.problem.model), seed
        point, layout = self._evaluator.point, plane.layout
        self._dtypes = [point[name].dtype for name in layout.names]
        dtype = torch.promote_types(layout.dtype, torch.float32)
        self._centre = torch.cat([point[name].reshape(-1).to(dtype) for name in layout.names])
        self._moved = torch.empty_like(self._centre)
        self._row, self._row_at = torch.empty_like(self._centre), float("nan")
        #: (slot, name, tensor) of the model's tensors; buffers with their initial values
        self._held: list[tuple[dict[str, Any], str, Tensor]] = []
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def move(self, at: Point) -> None:
        """Set the weights to a point; reset buffers and random generators.

        The parameters are views of a flat vector, which is written in place, unless a forward pass
        has replaced tensors of the model: then all are set again.
        """
        self._weights_at(at, self._moved)
        if self._held and all(slot.get(name) is tensor for slot, name, tensor in self._held):
            for buffer, first in self._buffers:
                buffer.copy_(first)
        else:
            self._evaluator.reset(self._leaves(self._moved))
            self._note_tensors()
        self._random.seed(self._seed)

    def _note_tensors(self) -> None:
        """Record the model's tensors, unless some parameters are not views of the flat vector."""
        if any(dtype != self._moved.dtype for dtype in self._dtypes):
            return
        modules = list(self._problem.model.modules())
        slots: list[dict[str, Any]] = [
            each for m in modules for each in (m._parameters, m._buffers)
        ]
        self._held = [(slot, name, t) for slot in slots for name, t in slot.items()]
        self._buffers = [(each, each.clone()) for each in self._problem.model.buffers()]

    def losses(self, batch: Batch, points: Sequence[Point]) -> Tensor:
        """Return the losses at several points from one pass with stacked weights and buffers."""
        moved = torch.stack([self._weights_at(at, torch.empty_like(self._moved)) for at in points])
        model = self._problem.model

        def loss_at(weights: Tensor, own_buffers: dict[str, Tensor]) -> Tensor:
            names = self._evaluator.layout.names
            leaves = dict(zip(names, self._leaves(weights), strict=True))
            substitute(model, self._evaluator.point | own_buffers | leaves)
            return self._problem.loss_on(copy_batch(batch))

        self._evaluator.reset(self._leaves(moved[0]))
        buffers = {n: b.expand(len(points), *b.shape).clone() for n, b in model.named_buffers()}
        self._random.seed(self._seed)
        found: Tensor = torch.func.vmap(loss_at, randomness="same")(moved, buffers)
        return found.detach().to("cpu", torch.float64)

    def _weights_at(self, at: Point, out: Tensor) -> Tensor:
        """Write the flat weights of a point into a tensor, and return it."""
        if not self._directions:
            return out.copy_(self._centre)
        if self._row_at != at[0]:  # neighbours share the first coordinate
            torch.add(self._centre, self._directions[0], alpha=at[0], out=self._row)
            self._row_at = at[0]
        if len(at) == 1:
            return out.copy_(self._row)
        return torch.add(self._row, self._directions[1], alpha=at[1], out=out)

    def _leaves(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of flat weights, each in its own dtype."""
        pieces = self._evaluator.layout.split(flat)
        return tuple(p.to(dtype) for p, dtype in zip(pieces, self._dtypes, strict=True))


def faster_stack(plane: Plane, grid: Sequence[np.ndarray]) -> int:
    """Return how many points to run in one pass with stacked weights.

    Stacking saves the fixed cost of a pass. On one core, stacks of 64 are 2 to 12 times as fast in
    dense networks with up to a million products of a weight and a sample in a batch, and not
    faster above; convolutions are slower. Three points are first evaluated both ways: a model may
    fail under vmap, or compute something else.

    Args:
        plane: without stacking.
        grid: the values of each axis.
    """
    owners = [module for module in plane.problem.model.modules() if [*module.parameters(False)]]
    is_dense = all(isinstance(each, _DENSE) for each in owners)
    products = plane.layout.size * plane.data.batch_size
    is_precise = plane.rounding < 1e-6  # not half precision, whose roundings differ visibly
    if plane.mode == "population" or not (is_dense and is_precise) or products > _MOST_PRODUCTS:
        return 1
    at = [tuple(float(each[0]) * share for each in grid) for share in (0.0, 0.5, 1.0)]
    try:
        found = plane.along(plane.directions, STACK).losses(at)
    except Exception:  # vmap does not support every operation
        return 1
    expected = plane.losses(at)
    is_same = np.allclose(found, expected, 1000 * plane.rounding, 0, equal_nan=True)
    return STACK if is_same else 1


def _keep_freed_memory() -> None:
    """Let the allocator keep the memory that a forward pass frees for the next pass.

    glibc returns freed memory to the system above a threshold, and every pass then pays for its
    page faults (20 % of a small VGG's time). The threshold rises to twice the largest block that
    was freed, at most 64 MB, and stays there. The block is never written to, so it takes no
    memory.
    """
    np.empty(_LARGEST_KEPT, np.uint8)


def _use(average: PopulationAverages) -> bool:
    """Use population statistics; return False if they are not finite."""
    try:
        average.use()
    except StateError:
        return False
    return True


def checksum(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of the values of tensors.

    Raises:
        InputError: if one is sparse.
    """
    whole = hashlib.sha256()
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise InputError(
                f"a surface needs dense tensors, got one with the layout {tensor.layout}; use "
                "tensor.to_dense()."
            )
        plain = tensor.detach().to("cpu").contiguous().reshape(-1)
        whole.update(plain.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()
