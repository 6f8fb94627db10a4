"""Several small fully connected networks trained together, each by its own learning rate.

A step of a small network is mostly overhead: many short calls. Networks of one architecture that
see the same batches share those calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.sweeps.stack import Stack

__all__ = ["LOSSES", "Member", "train_together"]


@dataclass
class Member:
    """One network of a group.

    Args:
        network: trained in place.
        learning_rate: its own.
        losses: of every step so far.
        taken: number of updates.
        diverged: whether it exploded and left the group.
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
    """Train all members on the same batches; one that diverges leaves at once.

    The outcome is that of separate trainings up to rounding.

    Args:
        members: of one architecture; trained in place, with losses and endings noted in them.
        batches: at least so many as there are steps.
        loss: squared_error or cross_entropy.
        steps: number of updates.
        momentum: heavy-ball momentum.
        weight_decay: factor of the parameters in the gradient.
        divergence_factor: multiple of its first loss that ends a member.
    """
    stack, alive = Stack([member.network for member in members]), list(members)
    kind = stack.parameters[0].dtype
    rates = torch.tensor([[member.learning_rate] for member in members], dtype=kind)
    for _, (inputs, targets) in zip(range(steps), batches, strict=False):
        each = _LOSSES[loss](stack.outputs(inputs), targets)
        gradients = torch.autograd.grad(each.sum(), stack.parameters)
        for member, value in zip(alive, each.tolist(), strict=True):
            member.losses.append(value)
            member.diverged = _exploded(member.losses, divergence_factor)
        left = [place for place, member in enumerate(alive) if not member.diverged]
        if len(left) < len(alive):
            stack.keep(left)
            alive, rates = [alive[place] for place in left], rates[left]
            gradients = tuple(gradient[left] for gradient in gradients)
        if not alive:
            return
        stack.update(gradients, rates, momentum, weight_decay)
        for member in alive:
            member.taken += 1
    for place in range(stack.count):
        stack.write_back(place)


def _exploded(losses: Sequence[float], factor: float) -> bool:
    first, last = losses[0], losses[-1]
    return not math.isfinite(last) or last > factor * first > 0


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each network; see `normscope.problem.squared_error`."""
    if not targets.is_floating_point():
        targets = functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return (outputs - targets.t()).square().sum((1, 2)) / (2 * outputs.shape[2])


def _cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each network; see `normscope.problem.cross_entropy`."""
    spread = targets.expand(len(outputs), -1)
    return functional.cross_entropy(outputs, spread, reduction="none").mean(1)


_LOSSES = {"squared_error": _squared_errors, "cross_entropy": _cross_entropies}
LOSSES = tuple(_LOSSES)
