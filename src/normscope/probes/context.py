"""The context of one training step: what all probes of that step share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.probes.batch_loss import BatchLoss, dense, differentiate
from normscope.probes.execution import ExecutionOrder, ForwardHooks, Layer
from normscope.probes.gradients import difference_and_cosine, squared_norms
from normscope.probes.ray import Ray, RayValues
from normscope.problem.problem import Problem
from normscope.training.optimizers import step_on_copies

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from normscope.probes.observed import ObservedModel
    from normscope.probes.probe import Probe

_ROUNDING = 1e-3  # largest relative difference between two computations of one gradient


class ParameterBuffers:
    """Tensors with the names, shapes, dtypes and strides of the parameters, reused at each step."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def like(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the buffers, allocated again if the parameters have changed."""
        if _layout(self._tensors) != _layout(parameters):
            with torch.inference_mode(False):
                self._tensors = {n: torch.empty_like(p.detach()) for n, p in parameters.items()}
        return self._tensors


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    return {n: (t.shape, t.dtype, t.device, t.stride()) for n, t in tensors.items()}


class StepContext:
    """One training step, between its gradient and its update.

    The gradient is computed here, on the given batch: the one in ``.grad`` may be accumulated over
    batches, scaled, clipped or missing. It is used only if the user says that it is that gradient.

    Args:
        observed: the model with its loss and optimizer.
        problem: the same with this step's batch.
        step: the number of the step.
        distances: of the points on the ray.
        buffers: reused memory.
        layer_names: the layers in the order of the first measured step; None at that step.
        ray_gradients: whether a probe needs the gradients on the ray.
    """

    def __init__(
        self,
        observed: ObservedModel,
        problem: Problem,
        step: int,
        distances: Sequence[float],
        buffers: ParameterBuffers,
        layer_names: Sequence[str] | None,
        ray_gradients: bool,
    ) -> None:
        self.observed = observed
        self.step = step
        self.distances = tuple(distances)
        self.seed = int(np.random.SeedSequence([observed.seed % 2**64, step]).generate_state(1)[0])
        self.batch_loss = BatchLoss(problem, self.seed, observed.mode)
        self.order = ExecutionOrder(observed.model)
        self.loss = math.nan
        self.gradient: dict[str, Tensor] = {}
        self._layer_names = layer_names
        self._ray_gradients = ray_gradients
        self._buffers = buffers.like(self.parameters)

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The model's own parameters by name, a tied one once; do not write to them."""
        return {name: p.detach() for name, p in self.observed.model.named_parameters()}

    @cached_property
    def learning_rates(self) -> dict[str, float]:
        """The learning rate of each trained parameter."""
        return self.observed.learning_rates()

    @cached_property
    def updated_parameters(self) -> dict[str, Tensor]:
        """The trained parameters after the optimizer's update by this step's gradient.

        The optimizer and its state are copied, not changed. Without an optimizer the update is a
        step of plain gradient descent. For probes with ``needs_update``; do not write to them.

        Raises:
            StateError: if the optimizer's update cannot be computed on copies.
        """
        if self.updated_optimizer is None:
            return {
                name: torch.sub(self.parameters[name], gradient, alpha=self.learning_rates[name])
                for name, gradient in self.gradient.items()
            }
        return {name: tensor.detach() for name, tensor in self.updated_optimizer[0].items()}

    @cached_property
    def updated_optimizer(self) -> tuple[dict[str, nn.Parameter], Optimizer] | None:
        """The trained parameters after the update and the optimizer's copy; None without one."""
        observed = self.observed
        if observed.optimizer is None:
            return None
        own = dict(observed.model.named_parameters())
        gradients: dict[Tensor, Tensor] = {own[n]: g for n, g in self.gradient.items()}
        copies, optimizer = step_on_copies(
            observed.optimizer, gradients, observed.learning_rate, self.seed
        )
        return {name: copies[own[name]] for name in self.gradient}, optimizer

    @property
    def learning_rate(self) -> float:
        """The first learning rate of a trained parameter that is not zero; zero if all are."""
        rates = [abs(rate) for rate in self.learning_rates.values()]
        return next(filter(None, rates), rates[0] if rates else math.nan)

    def run_pass(self, probes: Iterable[Probe], with_gradient: bool) -> None:
        """Run the pass at the parameters that all probes share, with their hooks.

        Args:
            probes: those that may add hooks.
            with_gradient: whether to run backward too.
        """
        parameters = self.copy_parameters()
        for name in self.learning_rates if with_gradient else ():
            parameters[name].requires_grad_()
        model = self.observed.model
        with self.batch_loss.at(parameters):
            hooks = ForwardHooks(model)
            for probe in probes:
                probe.add_hooks(hooks)
            with torch.set_grad_enabled(with_gradient), self.order.record(hooks):
                loss = self.batch_loss.forward()
            hooks.close()
            self.loss, self.gradient = loss.item(), differentiate(loss, parameters)

    def use_training_gradient(self, loss: float | Tensor) -> None:
        """Use the training's own loss and gradient, instead of `run_pass`."""
        self.loss = loss.item() if isinstance(loss, Tensor) else float(loss)
        self.gradient = self._training_gradient()

    def check_training_gradient(self) -> None:
        """Compare the training's ``.grad`` with the gradient that `run_pass` computed.

        Raises:
            InputError: if they differ by more than rounding.
        """
        training, size = self._training_gradient(), sum(squared_norms(self.gradient).values())
        size = math.sqrt(size)
        missing = [name for name in self.gradient if name not in training]
        difference = math.inf
        if not missing:
            difference, _ = difference_and_cosine(self.gradient, training)
        if difference > _ROUNDING * size:
            found = f"{missing[0]!r} has none" if missing else f"{difference / size:.2g} apart"
            raise InputError(
                "loss= says that .grad holds this loss's gradient on this batch, but it does not "
                f"({found}, relative to its size): it may be summed over batches, scaled or "
                "clipped, or the model draws random numbers; leave loss= out."
            )

    def _training_gradient(self) -> dict[str, Tensor]:
        """Return ``.grad`` of the trained parameters by name; do not write to it."""
        return {
            name: dense(parameter.grad)
            for name, parameter in self.observed.model.named_parameters()
            if name in self.learning_rates and parameter.grad is not None
        }

    @cached_property
    def layers(self) -> list[Layer]:
        """The layers in the order of the first measured step, as this step's pass found them."""
        found = {layer.name: layer for layer in self.order.layers()}
        if self._layer_names is None:
            return list(found.values())
        return [found.get(name, Layer(name, None, ())) for name in self._layer_names]

    @cached_property
    def ray(self) -> RayValues:
        """The values at the points of the ray, with gradients if any probe needs them."""
        ray = Ray(self.parameters, self.gradient, self.learning_rates, self._buffers)
        return ray.evaluate(self.batch_loss, self.distances, self._ray_gradients)

    def copy_parameters(self, changed: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return copies of the parameters for one pass, some of them changed.

        The copies share reused memory: the next call overwrites them.
        """
        changed = changed or {}
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                self._buffers[name].copy_(changed.get(name, tensor))
        return {name: tensor.detach() for name, tensor in self._buffers.items()}
