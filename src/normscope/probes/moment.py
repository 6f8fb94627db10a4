"""The model at one step of its training: what all probes of that step share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.probes.comparison import difference_and_cosine, squared_norms
from normscope.probes.execution import Layer, Order, Watch
from normscope.probes.factored import FactoredGradients
from normscope.probes.passes import Passes, dense, differentiated
from normscope.probes.ray import Ray, RayValues
from normscope.problem.problem import Problem

if TYPE_CHECKING:
    from normscope.probes.probe import Probe
    from normscope.probes.subject import Subject

__all__ = ["Moment", "Room"]

_ROUNDING = 1e-3  # relative difference of one gradient taken twice, at most


class Room:
    """Tensors like the model's parameters, kept from step to step to be overwritten."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._numbers = torch.empty(0)

    def like(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of these parameters' names, shapes, dtypes and memory formats."""
        if not _alike(self._tensors, parameters):
            with torch.inference_mode(False):
                self._tensors = {n: torch.empty_like(p.detach()) for n, p in parameters.items()}
        return self._tensors

    def matrix(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """A matrix of a tensor's dtype, the same memory each time."""
        alike = (self._numbers.dtype, self._numbers.device) == (like.dtype, like.device)
        if not alike or self._numbers.numel() < rows * columns:
            with torch.inference_mode(False):
                self._numbers = torch.empty(rows * columns, dtype=like.dtype, device=like.device)
        return self._numbers[: rows * columns].view(rows, columns)


def _alike(room: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> bool:
    return room.keys() == parameters.keys() and all(
        (tensor.shape, tensor.dtype, tensor.device, tensor.stride())
        == (room[name].shape, room[name].dtype, room[name].device, room[name].stride())
        for name, tensor in parameters.items()
    )


class Moment:
    """One step of a training, between its gradient and its update.

    The gradient is taken here, on the given batch: the one in ``.grad`` may be summed over several
    batches, scaled, clipped or not there yet; unless the user says that it is that gradient.

    Args:
        subject: the model with its loss and optimizer.
        problem: the same with this step's batch.
        step: the number of the step.
        distances: of the ray's points.
        room: for one point of the ray.
    """

    def __init__(
        self,
        subject: Subject,
        problem: Problem,
        step: int,
        distances: Sequence[float],
        room: Room,
    ) -> None:
        self.subject = subject
        self.step = step
        self.distances = tuple(distances)
        self.seed = int(np.random.SeedSequence([subject.seed, step]).generate_state(1)[0])
        self.passes = Passes(problem, self.seed)
        self.order = Order(subject.model)
        self.loss = math.nan
        self.gradient: dict[str, Tensor] = {}
        self.ray_gradients = False
        self.layer_names: tuple[str, ...] | None = None
        self._factored = FactoredGradients(room.matrix)
        self._room = room.like(self.parameters)

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The model's own parameters, by name, a tied one once; not to be written."""
        return {name: p.detach() for name, p in self.subject.model.named_parameters()}

    @cached_property
    def rates(self) -> dict[str, float]:
        """The learning rate of each parameter that is trained."""
        return self.subject.rates()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first trained parameter, which stands for all."""
        return abs(next(iter(self.rates.values()), math.nan))

    def look(self, probes: Iterable[Probe], with_gradient: bool) -> None:
        """Run the model at its parameters, each probe watching: the pass that all of them share.

        Args:
            probes: those that may watch.
            with_gradient: whether to run backward too.
        """
        trained = self.subject.trained()
        leaves = self._copies(trained if with_gradient else ())
        with self.passes.scene(leaves):
            watch = Watch(self.subject.model)
            for probe in probes:
                probe.watch(watch)
            if self.ray_gradients:
                self._factored.record(self.subject.model, trained)
            with torch.set_grad_enabled(with_gradient), self.order.watch(watch):
                loss = self.passes.forward()
            watch.close()
            self.loss, self.gradient = differentiated(loss, leaves)
        self._factored.settle(self.gradient)

    def take(self, loss: float | Tensor) -> None:
        """Take the training's own loss and gradient, in place of `look`."""
        self.loss = loss.item() if isinstance(loss, Tensor) else float(loss)
        self.gradient = self._left_by_training()

    def refuse_other_gradient(self) -> None:
        """Compare what the training left in ``.grad`` with the gradient that `look` took.

        Raises:
            InputError: if they differ by more than rounding.
        """
        left, size = self._left_by_training(), math.sqrt(sum(squared_norms(self.gradient).values()))
        missing = [name for name in self.gradient if name not in left]
        difference, _ = difference_and_cosine(self.gradient, left) if not missing else (math.inf, 0)
        if difference > _ROUNDING * size:
            found = f"{missing[0]!r} has none" if missing else f"{difference / size:.2g} apart"
            raise InputError(
                "loss= says that .grad holds this loss's gradient on this batch, but it does not "
                f"({found}, relative to its size): it may be summed over batches, scaled or "
                "clipped, or the model draws random numbers; leave loss= out."
            )

    def _left_by_training(self) -> dict[str, Tensor]:
        """The gradients in ``.grad`` of what is trained, by name; not to be written."""
        trained = set(self.subject.trained())
        return {
            name: dense(parameter.grad)
            for name, parameter in self.subject.model.named_parameters()
            if name in trained and parameter.grad is not None
        }

    def _copies(self, trained: Iterable[str]) -> dict[str, Tensor]:
        """The parameters in the room: a pass may write to its own, and those are the model's."""
        wanted = set(trained)
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                self._room[name].copy_(tensor)
        return {n: t.detach().requires_grad_(n in wanted) for n, t in self._room.items()}

    @cached_property
    def layers(self) -> list[Layer]:
        """The layers in the order of the first measured step, as this step's pass found them."""
        found = {layer.name: layer for layer in self.order.layers()}
        if self.layer_names is None:
            return list(found.values())
        return [found.get(name, Layer(name, None, ())) for name in self.layer_names]

    @cached_property
    def ray(self) -> RayValues:
        """The values at the points of the ray, with gradients if any probe asks for them."""
        ray = Ray(self.parameters, self.gradient, self.rates, self._room, self._factored)
        return ray.values(self.passes, self.distances, self.ray_gradients)

    def at_parameters(self, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters to work with in a pass: the changed ones, and copies of the others."""
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                self._room[name].copy_(changed.get(name, tensor))
        return {name: tensor.detach() for name, tensor in self._room.items()}
