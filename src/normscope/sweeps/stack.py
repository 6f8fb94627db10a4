"""Stacked tensors of several small networks: every layer one batched product for all of them.

Activations lie as (networks, features, samples), so that one native batch normalization over
networks x features channels serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.errors import InputError
from normscope.layers.kinds import is_batch_norm

__all__ = ["Stack", "is_stackable"]

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU)
_MATRIX = 3  # dimensions of stacked weights


@dataclass
class _Norm:
    """Stacked batch normalization: (networks x features) vectors."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    eps: float


def is_stackable(network: nn.Module) -> bool:
    """Whether a network is a chain of the layers that can be stacked."""
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
    """The layers of nested chains in order."""
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
            raise InputError("only chains of linear, norm and activation layers can be stacked.")
        self.count = len(networks)
        self.chains = [list(_layers(network)) for network in networks]
        self.parameters: list[Tensor] = []  # leaves, each with the networks as first dimension
        self.norms: dict[int, _Norm] = {}
        for index, layers in enumerate(zip(*self.chains, strict=True)):
            self._add(index, layers)
        self.momenta = [torch.zeros_like(each) for each in self.parameters]

    def _add(self, index: int, layers: Sequence[nn.Module]) -> None:
        for _, tensors in _named_parameters(layers):
            self.parameters.append(torch.stack(tensors).detach().requires_grad_())
        first = layers[0]
        if _is_plain_batch_norm(first):
            means = torch.cat([cast(Tensor, layer.running_mean) for layer in layers])
            variances = torch.cat([cast(Tensor, layer.running_var) for layer in layers])
            options = cast(nn.BatchNorm1d, first)
            assert options.momentum is not None
            self.norms[index] = _Norm(means, variances, options.momentum, options.eps)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs of all networks.

        Args:
            inputs: (samples, ...), the same for all.

        Returns:
            (networks, outputs, samples).
        """
        samples = len(inputs)
        signal, is_shared = inputs.flatten(1).t(), True  # (features, samples)
        parameters = iter(self.parameters)
        for index, layer in enumerate(self.chains[0]):
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
        """One step of SGD with heavy-ball momentum, each network by its own rate."""
        with torch.no_grad():
            gradients = list(gradients)
            if weight_decay:
                torch._foreach_add_(gradients, self.parameters, alpha=weight_decay)
            torch._foreach_mul_(self.momenta, momentum)
            torch._foreach_add_(self.momenta, gradients)
            for parameter, velocity in zip(self.parameters, self.momenta, strict=True):
                own = rates if parameter.dim() < _MATRIX else rates.unsqueeze(2)
                parameter.addcmul_(velocity, own, value=-1)

    def keep(self, places: Sequence[int]) -> None:
        """Leave all networks but these, after writing the others back into their modules."""
        for place in set(range(self.count)) - set(places):
            self.write_back(place)
        chosen = torch.tensor(places, dtype=torch.long)
        self.parameters = [p.detach()[chosen].requires_grad_() for p in self.parameters]
        self.momenta = [each[chosen] for each in self.momenta]
        for norm in self.norms.values():
            for name in ("running_mean", "running_var"):
                whole = getattr(norm, name).view(self.count, -1)
                setattr(norm, name, whole[chosen].reshape(-1))
        self.chains = [self.chains[place] for place in places]
        self.count = len(places)

    def write_back(self, place: int) -> None:
        """Copy one network's tensors into its module."""
        parameters = iter(self.parameters)
        with torch.no_grad():
            for index, layer in enumerate(self.chains[place]):
                for own, _ in _named_parameters([layer]):
                    cast(Tensor, getattr(layer, own)).copy_(next(parameters)[place])
                if index in self.norms:
                    norm, module = self.norms[index], cast(nn.BatchNorm1d, layer)
                    mean, variance = module.running_mean, module.running_var
                    assert mean is not None
                    assert variance is not None
                    mean.copy_(norm.running_mean.view(self.count, -1)[place])
                    variance.copy_(norm.running_var.view(self.count, -1)[place])


def _product(
    weight: Tensor, bias: Tensor | None, signal: Tensor, is_shared: bool, samples: int
) -> Tensor:
    """The affine map of every network; inputs they share make one large product."""
    count, outputs, inputs = weight.shape
    if is_shared:
        flat = weight.view(count * outputs, inputs)
        product = flat @ signal if bias is None else torch.addmm(bias.view(-1, 1), flat, signal)
        return product.view(count, outputs, samples)
    return weight @ signal if bias is None else torch.baddbmm(bias, weight, signal)


def _named_parameters(layers: Sequence[nn.Module]) -> list[tuple[str, list[Tensor]]]:
    """Weight and bias of a layer, where it has them, from each of the networks."""
    if not (isinstance(layers[0], nn.Linear) or _is_plain_batch_norm(layers[0])):
        return []
    names = [name for name in ("weight", "bias") if getattr(layers[0], name) is not None]
    return [(name, [cast(Tensor, getattr(layer, name)) for layer in layers]) for name in names]
