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
from normscope.layers.kinds import is_batch_norm
from normscope.training.loop import has_diverged

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU)


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
    for index in range(stack.count):
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


@dataclass
class _Norm:
    """Stacked batch normalization; vectors of networks x features."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    eps: float


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
        self.count = len(networks)
        self.layers = [list(_layers(network)) for network in networks]
        self.parameters: list[Tensor] = []  # leaves (networks, ...)
        self.norms: dict[int, _Norm] = {}
        for index, layers in enumerate(zip(*self.layers, strict=True)):
            self._add(index, layers)
        self.momenta = [torch.zeros_like(each) for each in self.parameters]

    def _add(self, index: int, layers: Sequence[nn.Module]) -> None:
        for _, tensors in _named_parameters(layers):
            self.parameters.append(torch.stack(tensors).detach().requires_grad_())
        first = layers[0]
        if _is_plain_batch_norm(first):
            means = torch.cat([cast(Tensor, layer.running_mean) for layer in layers])
            variances = torch.cat([cast(Tensor, layer.running_var) for layer in layers])
            momentum, eps = cast(float, first.momentum), cast(float, first.eps)
            self.norms[index] = _Norm(means, variances, momentum, eps)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the outputs of all networks.

        Args:
            inputs: (samples, ...), the same for all.

        Returns:
            (networks, outputs, samples).
        """
        samples = len(inputs)
        signal, is_shared = inputs.flatten(1).t(), True  # (features, samples)
        parameters = iter(self.parameters)
        for index, layer in enumerate(self.layers[0]):
            if isinstance(layer, nn.Linear):
                weight = next(parameters)
                bias = next(parameters).unsqueeze(2) if layer.bias is not None else None
                signal = _product(weight, bias, signal, is_shared, samples)
                is_shared = False
            elif index in self.norms:
                scale, shift = next(parameters), next(parameters)
                signal = self._normalized(self.norms[index], scale, shift, signal)
            elif isinstance(layer, _ELEMENTWISE):
                signal = layer(signal)
        return signal

    def _normalized(self, norm: _Norm, scale: Tensor, shift: Tensor, signal: Tensor) -> Tensor:
        count, features, samples = signal.shape
        return functional.batch_norm(
            signal.reshape(1, count * features, samples),
            norm.running_mean,
            norm.running_var,
            scale.reshape(-1),
            shift.reshape(-1),
            True,
            norm.momentum,
            norm.eps,
        ).view(count, features, samples)

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
        for index in set(range(self.count)) - set(indices):
            self.write_back(index)
        chosen = torch.tensor(indices, dtype=torch.long)
        self.parameters = [p.detach()[chosen].requires_grad_() for p in self.parameters]
        self.momenta = [each[chosen] for each in self.momenta]
        for norm in self.norms.values():
            for name in ("running_mean", "running_var"):
                whole = getattr(norm, name).view(self.count, -1)
                setattr(norm, name, whole[chosen].reshape(-1))
        self.layers = [self.layers[index] for index in indices]
        self.count = len(indices)

    def write_back(self, index: int) -> None:
        """Copy one network's tensors into its module."""
        parameters = iter(self.parameters)
        with torch.no_grad():
            for position, layer in enumerate(self.layers[index]):
                for name, _ in _named_parameters([layer]):
                    cast(Tensor, getattr(layer, name)).copy_(next(parameters)[index])
                if position in self.norms:
                    for name in ("running_mean", "running_var"):
                        stacked = getattr(self.norms[position], name).view(self.count, -1)
                        cast(Tensor, getattr(layer, name)).copy_(stacked[index])


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


def _named_parameters(layers: Sequence[nn.Module]) -> list[tuple[str, list[Tensor]]]:
    """Names of a layer's weight and bias, if any, with the tensors of all networks."""
    if not (isinstance(layers[0], nn.Linear) or _is_plain_batch_norm(layers[0])):
        return []
    names = [name for name in ("weight", "bias") if getattr(layers[0], name) is not None]
    return [(name, [cast(Tensor, getattr(layer, name)) for layer in layers]) for name in names]
