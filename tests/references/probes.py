"""The probes the slow way: deep copies of the model, loaded, run forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


def gradient_at(model: nn.Module, values: dict[str, Tensor], loss: Loss, x: Tensor, y: Tensor):
    """Loss and gradient by name of a copy of the model with other parameters."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(values[name])
    twin.zero_grad()
    value = loss(twin(x.clone()), y)
    value.backward()
    found = {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}
    return value.item(), found


def own_values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in gradient.values()])


def ray(
    model: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    distances: Sequence[float],
    rates: dict[str, float],
) -> list[dict[str, float]]:
    """Loss, length, distance and cosine at each point of the ray."""
    start = own_values(model)
    _, gradient = gradient_at(model, start, loss, x, y)
    found = []
    for distance in distances:
        moved = {
            name: value - distance * rates.get(name, 0.0) * gradient.get(name, 0.0)
            for name, value in start.items()
        }
        value, there = gradient_at(model, moved, loss, x, y)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in gradient.items()}
        one, other = flat(gradient), flat(zeros | there)
        length = flat({n: moved[n] - start[n] for n in start}).norm()
        cosine = torch.dot(one, other) / (one.norm() * other.norm())
        found.append(
            {
                "loss": value,
                "length": length.item(),
                "distance": (one - other).norm().item(),
                "cosine": cosine.item(),
            }
        )
    return found


def covariate_shift(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    layers: Sequence[Sequence[str]],
    before: Sequence[Sequence[str]],
) -> list[tuple[float, float]]:
    """Definition 2.1 by really stepping a copy of model and optimizer.

    Args:
        model: the model.
        optimizer: its optimizer.
        loss: the loss.
        x: inputs.
        y: targets.
        layers: the names of each layer's parameters.
        before: for each layer the names of the parameters of all that runs before it.
    """
    start = own_values(model)
    _, gradient = gradient_at(model, start, loss, x, y)
    twin, other = copy.deepcopy((model, optimizer))
    for name, parameter in twin.named_parameters():
        parameter.grad = gradient[name].clone() if name in gradient else None
    other.step()
    updated = own_values(twin)
    shifts = []
    for own, earlier in zip(layers, before, strict=True):
        mixed = {name: updated[name] if name in earlier else start[name] for name in start}
        _, there = gradient_at(model, mixed, loss, x, y)
        one, two = flat({n: gradient[n] for n in own}), flat({n: there[n] for n in own})
        cosine = torch.dot(one, two) / (one.norm() * two.norm())
        shifts.append(((one - two).norm().item(), cosine.item()))
    return shifts
