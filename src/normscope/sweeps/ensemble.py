"""Several small fully connected networks trained together, each with its own learning rate.

A step of a small network is mostly overhead: many short calls. Networks of one architecture that
see the same batches share those calls: their tensors are stacked, and every layer is one batched
product. Activations have the shape (networks, features, samples), so that one batch normalization
over networks x features channels serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.errors import InputError
from normscope.problem.modes import is_batch_norm
from normscope.training.loop import has_diverged

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU)
_LEARNED = ("weight", "bias")
_RUNNING = ("running_mean", "running_var")


@dataclass
class Member:
    """One network of a group.

    Args:
        network: trained in place.
        learning_rate: of its updates.
        losses: of every step so far.
        taken: number of updates.
        diverged: whether it diverged and left the group.
    """

    network: nn.Module
    learning_rate: float
    losses: list[float] = field(default_factory=list)
    taken: int = 0
    diverged: bool = False


def train_together(
    members: Sequence[Member],
    batches: Iterator[tuple[Tensor, Tensor]],
    loss: str,
    steps: int,
    momentum: float,
    weight_decay: float,
    divergence_factor: float,
) -> None:
    """Train all members on the same batches; one that diverges leaves the group at once.

    The result equals that of separate trainings up to rounding.

    Args:
        members: of one architecture; trained and updated in place.
        batches: at least as many as there are steps.
        loss: squared_error or cross_entropy.
        steps: number of updates.
        momentum: heavy-ball momentum.
        weight_decay: factor of the parameters in the gradient.
        divergence_factor: multiple of its first loss that ends a member.
    """
    stack, alive = Stack([member.network for member in members]), list(members)
    dtype = stack.parameters[0].dtype
    rates = torch.tensor([[member.learning_rate] for member in members], dtype=dtype)
    for _, (inputs, targets) in zip(range(steps), batches, strict=False):
        losses = LOSSES[loss](stack.outputs(inputs), targets)
        gradients = torch.autograd.grad(losses.sum(), stack.parameters)
        for member, value in zip(alive, losses.tolist(), strict=True):
            member.losses.append(value)
            member.diverged = has_diverged(member.losses[-1], member.losses[0], divergence_factor)
        kept = [index for index, member in enumerate(alive) if not member.diverged]
        if len(kept) < len(alive):
            stack.keep(kept)
            alive, rates = [alive[index] for index in kept], rates[kept]
            gradients = tuple(gradient[kept] for gradient in gradients)
        if not alive:
            return
        stack.update(gradients, rates, momentum, weight_decay)
        for member in alive:
            member.taken += 1
    for index in range(len(stack.layers)):
        stack.write_back(index)


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each network; see `normscope.problem.squared_error`."""
    if not targets.is_floating_point():
        targets = functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return (outputs - targets.t()).square().sum((1, 2)) / (2 * outputs.shape[2])


def _cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each network; see `normscope.problem.cross_entropy`."""
    expanded = targets.expand(len(outputs), -1)
    return functional.cross_entropy(outputs, expanded, reduction="none").mean(1)


LOSSES = {"squared_error": _squared_errors, "cross_entropy": _cross_entropies}


def is_stackable(network: nn.Module) -> bool:
    """Return whether a network is a sequence of layers that can be stacked."""
    return all(
        isinstance(layer, (nn.Flatten, nn.Identity, nn.Linear, *_ELEMENTWISE))
        or _is_plain_batch_norm(layer)
        for layer in _layers(network)
    )


def _is_plain_batch_norm(layer: nn.Module) -> bool:
    return (
        is_batch_norm(layer)
        and getattr(layer, "weight", None) is not None
        and getattr(layer, "running_mean", None) is not None
        and getattr(layer, "momentum", None) is not None
    )


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested Sequentials in order."""
    if not isinstance(network, nn.Sequential):
        yield network
        return
    for part in network:
        yield from _layers(part)


class Stack:
    """The stacked tensors of networks that are trained together.

    Args:
        networks: of one architecture, in train mode.

    Raises:
        InputError: if a layer cannot be stacked.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        if not all(map(is_stackable, networks)):
            raise InputError("only sequences of linear, norm and activation layers can be stacked.")
        self.layers = [list(_layers(network)) for network in networks]
        # all of shape (networks, ...)
        self.parameters = [each.requires_grad_() for each in self._stacked(_LEARNED)]
        self.statistics = self._stacked(_RUNNING)
        self.momenta = [torch.zeros_like(each) for each in self.parameters]

    def _stacked(self, names: Sequence[str]) -> list[Tensor]:
        """Stack the tensors of these names, layer by layer."""
        together = list(zip(*self.layers, strict=True))
        return [
            torch.stack([cast(Tensor, getattr(each, name)).detach() for each in together[position]])
            for position, name in self._tensors(names)
        ]

    def _tensors(self, names: Sequence[str]) -> list[tuple[int, str]]:
        """Return which layers, by position, have tensors of these names."""
        return [
            (position, name)
            for position, layer in enumerate(self.layers[0])
            for name in names
            if getattr(layer, name, None) is not None
        ]

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the outputs of all networks.

        Args:
            inputs: (samples, ...), the same for all.

        Returns:
            (networks, outputs, samples).
        """
        samples = len(inputs)
        signal, is_shared = inputs.flatten(1).t(), True  # (features, samples)
        parameters, statistics = iter(self.parameters), iter(self.statistics)
        for layer in self.layers[0]:
            if isinstance(layer, nn.Linear):
                weight = next(parameters)
                bias = next(parameters).unsqueeze(2) if layer.bias is not None else None
                signal = _product(weight, bias, signal, is_shared, samples)
                is_shared = False
            elif _is_plain_batch_norm(layer):
                mean, variance = next(statistics).view(-1), next(statistics).view(-1)
                scale, shift = next(parameters).view(-1), next(parameters).view(-1)
                momentum, eps = cast(float, layer.momentum), cast(float, layer.eps)
                flat = signal.reshape(1, -1, samples)  # a channel for each network and feature
                signal = functional.batch_norm(
                    flat, mean, variance, scale, shift, True, momentum, eps
                ).view_as(signal)
            elif isinstance(layer, _ELEMENTWISE):
                signal = layer(signal)
        return signal

    def update(
        self, gradients: Sequence[Tensor], rates: Tensor, momentum: float, weight_decay: float
    ) -> None:
        """Take one step of SGD with heavy-ball momentum, each network with its own rate."""
        with torch.no_grad():
            gradients = list(gradients)
            if weight_decay:
                torch._foreach_add_(gradients, self.parameters, alpha=weight_decay)
            torch._foreach_mul_(self.momenta, momentum)
            torch._foreach_add_(self.momenta, gradients)
            for parameter, velocity in zip(self.parameters, self.momenta, strict=True):
                is_matrix = parameter.dim() == 3
                own_rates = rates.unsqueeze(2) if is_matrix else rates
                parameter.addcmul_(velocity, own_rates, value=-1)

    def keep(self, indices: Sequence[int]) -> None:
        """Remove all networks but these, after writing the others back into their modules."""
        for index in set(range(len(self.layers))) - set(indices):
            self.write_back(index)
        chosen = torch.tensor(indices, dtype=torch.long)
        self.parameters = [p.detach()[chosen].requires_grad_() for p in self.parameters]
        self.momenta = [each[chosen] for each in self.momenta]
        self.statistics = [each[chosen] for each in self.statistics]
        self.layers = [self.layers[index] for index in indices]

    def write_back(self, index: int) -> None:
        """Copy one network's tensors into its module."""
        with torch.no_grad():
            for names, stacks in ((_LEARNED, self.parameters), (_RUNNING, self.statistics)):
                for (position, name), stacked in zip(self._tensors(names), stacks, strict=True):
                    tensor = cast(Tensor, getattr(self.layers[index][position], name))
                    tensor.copy_(stacked[index])


def _product(
    weight: Tensor, bias: Tensor | None, signal: Tensor, is_shared: bool, samples: int
) -> Tensor:
    """Affine map of every network; shared inputs make one large product."""
    count, outputs, inputs = weight.shape
    if is_shared:
        flat = weight.view(count * outputs, inputs)
        product = flat @ signal if bias is None else torch.addmm(bias.view(-1, 1), flat, signal)
        return product.view(count, outputs, samples)
    return weight @ signal if bias is None else torch.baddbmm(bias, weight, signal)
