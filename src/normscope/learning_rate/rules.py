"""Update rules of optimizers, and the largest learning rate at which each contracts a quadratic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from normscope.errors import ArgumentTypeError, InputError

__all__ = ["UpdateRule", "rule_of"]


@dataclass(frozen=True)
class UpdateRule:
    """What an optimizer does with a gradient.

    Args:
        name: of the optimizer.
        momentum: of the running sum (or mean) of the gradients.
        nesterov: whether the step looks ahead by Nesterov's rule.
        dampening: what is taken off a new gradient; the momentum itself for Adam's running mean.
        weight_decay: added to the gradient as this multiple of the weights.
        decoupled: whether the weight decay acts on the weights directly (AdamW).
        second_moment: decay of the mean squared gradient that the step is divided by; None for
            SGD, whose bound is exact.
        epsilon: added to its root.
        amsgrad: whether the largest mean so far divides, rather than the present one.
        centered: whether the squared mean gradient is taken off the mean squared one.
        corrected: whether running means are corrected for their start at zero (Adam's are).
    """

    name: str
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    weight_decay: float = 0.0
    decoupled: bool = False
    second_moment: float | None = None
    epsilon: float = 0.0
    amsgrad: bool = False
    centered: bool = False
    corrected: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the bound is a theorem on quadratics, rather than an estimate."""
        return self.second_moment is None

    def largest_stable_rate(self, curvature: float) -> float:
        r"""The learning rate above which a quadratic of this curvature is not contracted.

        .. math:: \eta^* = \frac{2 (1 + \mu)}{(1 - \tau) (\lambda + w)}, \qquad
            \eta^*_{\mathrm{Nesterov}} = \frac{2 (1 + \mu)}{(1 + 2 \mu) (\lambda + w)}, \qquad
            \eta^*_{\mathrm{decoupled}} = \frac{2 (1 + \mu)}{(1 - \tau) \lambda + (1 + \mu) w}

        From the characteristic polynomial of two steps: both of its roots are inside the unit
        circle exactly below this rate. A decay of the weights themselves has no momentum.

        Reference: wei2018, Eq. (7), for heavy-ball momentum. Notation: lambda = curvature, mu =
        momentum, tau = dampening, w = weight decay.

        Args:
            curvature: the largest eigenvalue; where the rule divides, of the curvature divided
                likewise, with the decay that is part of the gradient already in it.

        Returns:
            The rate; infinite if nothing is curved.

        >>> UpdateRule("SGD", momentum=0.9).largest_stable_rate(3.8)
        1.0
        >>> UpdateRule("SGD", momentum=0.5, nesterov=True).largest_stable_rate(1.0)
        1.5
        """
        gain = 1 + 2 * self.momentum if self.nesterov else 1 - self.dampening
        pull = gain * curvature
        if self.decoupled:
            pull += (1 + self.momentum) * self.weight_decay
        elif self.second_moment is None:
            pull = gain * (curvature + self.weight_decay)
        return 2 * (1 + self.momentum) / pull if pull > 0 else math.inf


# of an optimizer's groups: what the rule of all of them is made of
_ONE_FOR_ALL = (
    *("lr", "momentum", "nesterov", "dampening"),
    *("betas", "alpha", "eps", "amsgrad", "centered", "decoupled_weight_decay"),
)


def rule_of(optimizer: Optimizer) -> UpdateRule:
    """The update rule of a torch optimizer.

    Args:
        optimizer: SGD, Adam, AdamW or RMSprop.

    Returns:
        Its rule; of several weight decays the largest.

    Raises:
        ArgumentTypeError: if it is of another class.
        InputError: if it maximizes, or its groups differ in what must be one.
    """
    readers = {SGD: _sgd, Adam: _adam, AdamW: _adamw, RMSprop: _rmsprop}
    reader = readers.get(type(optimizer))
    if reader is None:
        raise ArgumentTypeError(
            "the curvature bound knows SGD, Adam, AdamW and RMSprop, got "
            f"{type(optimizer).__name__}; use one of these."
        )
    groups = optimizer.param_groups
    if any(group.get("maximize") for group in groups):
        raise InputError("the optimizer has maximize=True; the advice is for minimizing a loss.")
    for name in _ONE_FOR_ALL:
        values = {str(group[name]) for group in groups if name in group}
        if len(values) > 1:
            raise InputError(
                f"the optimizer's groups differ in {name!r} ({', '.join(sorted(values))}); the "
                "advice is one learning rate for all: give groups that agree in it."
            )
    decay = max(float(group["weight_decay"]) for group in groups)
    return UpdateRule(type(optimizer).__name__, weight_decay=decay, **reader(groups[0]))


def _sgd(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "momentum": float(group["momentum"]),
        "nesterov": bool(group["nesterov"]),
        "dampening": float(group["dampening"]) if group["momentum"] else 0.0,
    }


def _adam(group: dict[str, Any]) -> dict[str, Any]:
    first, second = map(float, group["betas"])
    return {
        "momentum": first,
        "dampening": first,  # a running mean, not a sum
        "second_moment": second,
        "epsilon": float(group["eps"]),
        "decoupled": bool(group.get("decoupled_weight_decay", False)),
        "amsgrad": bool(group["amsgrad"]),
        "corrected": True,
    }


def _adamw(group: dict[str, Any]) -> dict[str, Any]:
    return {**_adam(group), "decoupled": True}  # torch before 2.7 does not say it in the group


def _rmsprop(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "momentum": float(group["momentum"]),
        "second_moment": float(group["alpha"]),
        "epsilon": float(group["eps"]),
        "centered": bool(group["centered"]),
    }
