"""What an optimizer does with a gradient: its rule, its stability limit, its steps, its divisor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from normscope.errors import InputError
from normscope.problem.parameters import ParameterLayout


@dataclass(frozen=True)
class UpdateRule:
    """The update rule of an optimizer.

    Args:
        name: of the optimizer.
        momentum: of the running sum (or mean) of the gradients.
        nesterov: whether momentum is Nesterov's.
        dampening: what is subtracted from the weight of a new gradient; the momentum itself for
            Adam's running mean.
        weight_decay: added to the gradient as this multiple of the weights.
        decoupled: whether the weight decay acts on the weights directly (AdamW).
        second_moment: decay of the mean squared gradient that divides the step; None for SGD,
            whose bound is exact.
        epsilon: added to the root of the mean squared gradient.
        amsgrad: whether the largest mean so far divides, rather than the current one.
        centered: whether the squared mean gradient is subtracted from the mean squared one.
        corrected: whether running means are corrected for their start at zero (Adam's are).
        unknown: why the rule is not known, so that only runs can find the limit; None if it is.
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
    unknown: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the bound is a theorem on quadratics, rather than an estimate."""
        return self.second_moment is None and self.unknown is None

    def largest_stable_rate(self, curvature: float) -> float:
        r"""Return the learning rate above which a quadratic of this curvature diverges.

        .. math:: \eta^* = \frac{2 (1 + \mu)}{(1 - \tau) (\lambda + w)}, \qquad
            \eta^*_{\mathrm{Nesterov}} = \frac{2 (1 + \mu)}{(1 + 2 \mu) (\lambda + w)}, \qquad
            \eta^*_{\mathrm{decoupled}} = \frac{2 (1 + \mu)}{(1 - \tau) \lambda + (1 + \mu) w}

        From the characteristic polynomial of two steps: both of its roots are inside the unit
        circle exactly below this rate. Decoupled weight decay has no momentum.

        Reference: wei2018, Eq. (7), for heavy-ball momentum. Notation: lambda = curvature, mu =
        momentum, tau = dampening, w = weight decay.

        Args:
            curvature: the largest eigenvalue; if the rule has a divisor, of the preconditioned
                curvature, which includes the weight decay that is part of the gradient.

        Returns:
            The rate; infinite if no direction has positive curvature.

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

    def critical_curvature(self, rate: float) -> float:
        r"""Return the curvature above which a quadratic diverges at this learning rate.

        .. math:: \lambda^* = \frac{2 (1 + \mu)}{(1 - \tau)\, \eta} - w, \qquad
            \lambda^*_{\mathrm{Adam}} = \frac{2 + 2 \beta_1}{(1 - \beta_1)\, \eta}

        The inverse of `largest_stable_rate`. Reference: cohen2021, Section 2.1; cohen2022, Eq. (2),
        for Adam's preconditioned curvature. Notation: as there, beta_1 = momentum.

        Args:
            rate: the learning rate, positive.

        >>> UpdateRule("SGD").critical_curvature(0.1)
        20.0
        >>> adam = UpdateRule("Adam", momentum=0.9, dampening=0.9, second_moment=0.999)
        >>> round(adam.critical_curvature(1.0), 6)
        38.0
        """
        gain = 1 + 2 * self.momentum if self.nesterov else 1 - self.dampening
        pull = 2 * (1 + self.momentum) / rate
        if self.decoupled:
            pull -= (1 + self.momentum) * self.weight_decay
        decay = 0.0 if self.decoupled or self.second_moment is not None else self.weight_decay
        return pull / gain - decay

    def critical_curvature_of_noise(self, rate: float) -> float:
        r"""Return the curvature above which small batches are unstable at this learning rate.

        .. math:: \lambda^* = \frac{2 (1 - \mu)}{(1 - \tau)\, \eta} - w

        Momentum sums the noise of 1 / (1 - mu) batches, so that it lowers this threshold. Without
        momentum it is that of `critical_curvature`.

        Reference: andreyev2026, for heavy-ball momentum.

        Args:
            rate: the learning rate, positive.

        >>> round(UpdateRule("SGD", momentum=0.9).critical_curvature_of_noise(0.1), 6)
        2.0
        """
        return 2 * (1 - self.momentum) / ((1 - self.dampening) * rate) - self.weight_decay

    def __str__(self) -> str:
        """Name and hyperparameters in a few words.

        >>> str(UpdateRule("SGD", momentum=0.9, nesterov=True, weight_decay=0.01))
        'SGD, momentum 0.9 (Nesterov), weight decay 0.01'
        >>> str(UpdateRule("Adam", momentum=0.9, dampening=0.9, second_moment=0.999))
        'Adam, beta1 0.9'
        """
        is_mean = self.second_moment is not None and self.dampening > 0
        words = [self.name]
        if self.momentum:
            words.append(f"{'beta1' if is_mean else 'momentum'} {self.momentum:g}")
        if self.dampening and not is_mean:
            words.append(f"dampening {self.dampening:g}")
        if self.nesterov:
            words[-1] += " (Nesterov)"
        if self.weight_decay:
            words.append(f"weight decay {self.weight_decay:g}")
        return ", ".join(words)


# options that all parameter groups must share: together they make the rule
_SHARED_OPTIONS = (
    *("momentum", "nesterov", "dampening"),
    *("betas", "alpha", "eps", "amsgrad", "centered", "decoupled_weight_decay"),
)


def rule_of(optimizer: Optimizer) -> UpdateRule:
    """Return the update rule of a torch optimizer.

    Args:
        optimizer: any; the rules of SGD, Adam, AdamW and RMSprop are known.

    Returns:
        Its rule, with the largest of several weight decays. Learning rates do not belong to it. It
        is unknown for an optimizer of another class, and for one whose groups differ in an option
        that the rule has once.

    Raises:
        InputError: if it maximizes.
    """
    readers = {SGD: _sgd, Adam: _adam, AdamW: _adamw, RMSprop: _rmsprop}
    groups, name = optimizer.param_groups, type(optimizer).__name__
    if any(group.get("maximize") for group in groups):
        raise InputError("the optimizer has maximize=True; the advice is for minimizing a loss.")
    reader = readers.get(type(optimizer))
    if reader is None:
        return UpdateRule(name, unknown=f"the update rule of {name} is not known")
    for option in _SHARED_OPTIONS:
        values = {str(group[option]) for group in groups if option in group}
        if len(values) > 1:
            differ = f"the groups of {name} differ in {option!r} ({', '.join(sorted(values))})"
            return UpdateRule(name, unknown=differ)
    decay = max(float(group["weight_decay"]) for group in groups)
    return UpdateRule(name, weight_decay=decay, **reader(groups[0]))


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
    return {**_adam(group), "decoupled": True}  # torch before 2.7 has no such option in the group


def _rmsprop(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "momentum": float(group["momentum"]),
        "second_moment": float(group["alpha"]),
        "epsilon": float(group["eps"]),
        "centered": bool(group["centered"]),
    }


class RuleSteps:
    """Applies an update rule step by step, for one tensor or for many candidates at once.

    `torch.optim` takes one learning rate per group. The last layer is trained at many rates at
    once, as one tensor (candidates, ...), which this class supports. Trial runs use it too, so
    that both predictions round alike; Adam's steps differ from torch's in the last bits.

    Args:
        rule: of the optimizer.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule
        self._state: dict[str, Tensor] = {}
        self._taken = 0

    def apply(self, value: Tensor, gradient: Tensor, rate: Tensor | float) -> None:
        """Update parameters in place by one step.

        Args:
            value: the parameters.
            gradient: of the loss there, in the same shape.
            rate: the learning rate, or one for each candidate in the shape (candidates, 1, ...).
        """
        rule = self._rule
        self._taken += 1
        if rule.decoupled:
            value.mul_(1 - rate * rule.weight_decay)
        elif rule.weight_decay:
            gradient = gradient.add(value, alpha=rule.weight_decay)
        if isinstance(rate, Tensor):
            value.addcmul_(rate, self._direction(gradient), value=-1)
        else:
            value.sub_(self._direction(gradient), alpha=rate)

    def keep(self, chosen: Tensor) -> None:
        """Drop the state of all candidates but the chosen ones, a mask (candidates,)."""
        self._state = {name: each[chosen] for name, each in self._state.items()}

    def _direction(self, gradient: Tensor) -> Tensor:
        rule = self._rule
        if rule.second_moment is not None:
            return self._divided_direction(gradient, rule.second_moment)
        if rule.momentum == 0:
            return gradient
        if self._taken == 1:  # as in torch
            velocity = self._state["velocity"] = gradient.clone()
        else:
            velocity = self._state["velocity"].mul_(rule.momentum)
            velocity.add_(gradient, alpha=1 - rule.dampening)
        return gradient + rule.momentum * velocity if rule.nesterov else velocity

    def _divided_direction(self, gradient: Tensor, decay: float) -> Tensor:
        rule = self._rule
        square = self._running_mean("square", gradient.square(), decay)
        if rule.corrected:  # Adam
            mean = self._running_mean("mean", gradient, rule.momentum)
            mean = mean / (1 - rule.momentum**self._taken)
            if rule.amsgrad:
                square = square.maximum(self._state.get("largest", square))
                self._state["largest"] = square
            return mean / ((square / (1 - decay**self._taken)).sqrt() + rule.epsilon)
        if rule.centered:
            square = (square - self._running_mean("mean", gradient, decay).square()).clamp(min=0)
        divided = gradient / (square.sqrt() + rule.epsilon)
        if self._taken > 1:
            divided += rule.momentum * self._state["velocity"]
        self._state["velocity"] = divided
        return divided

    def _running_mean(self, name: str, value: Tensor, decay: float) -> Tensor:
        """Update and return a running mean that starts at zero."""
        mean = (1 - decay) * value
        if self._taken > 1:
            mean += decay * self._state[name]
        self._state[name] = mean
        return mean


@dataclass(frozen=True)
class Preconditioner:
    """The divisor of each entry of the gradient: of Adam and RMSprop, and of slower groups.

    Args:
        scale: flat, in the layout's order, positive.
        is_given: whether it comes from the optimizer's state, rather than from a few gradients.
        decay: weight decay that is part of the gradient, entry by entry; None if there is none.
        has_group_rates: whether it divides by the relative learning rates of parameter groups.
    """

    scale: Tensor
    is_given: bool
    decay: Tensor | None = None
    has_group_rates: bool = False


def preconditioner_of(
    optimizer: Optimizer,
    rule: UpdateRule,
    parameters: Mapping[str, Tensor],
    layout: ParameterLayout,
    gradients: list[Tensor],
    group_rates: Sequence[float] | None = None,
) -> Preconditioner | None:
    r"""Return the divisor of the optimizer's steps.

    .. math:: P = (\sqrt{\hat v} + \epsilon) / r

    with the relative learning rate r of the entry's group; for SGD the root is one.

    Args:
        optimizer: its state holds the mean squared gradients once it has taken steps.
        rule: of the optimizer.
        parameters: of the model, by name.
        layout: of the flat vectors.
        gradients: flat ones of a few batches, whose mean square replaces a missing state.
        group_rates: learning rate of every group, for a common rate of 1; None: all 1.

    Returns:
        The divisor; None for SGD with one learning rate.
    """
    found = _divisor(optimizer, rule, parameters, layout, gradients)
    if group_rates is None or set(group_rates) == {1.0}:
        return found
    rates = _entries(optimizer, group_rates, 1.0, parameters, layout)
    if found is None:
        return Preconditioner(1 / rates, is_given=True, has_group_rates=True)
    return replace(found, scale=found.scale / rates, has_group_rates=True)


def _divisor(
    optimizer: Optimizer,
    rule: UpdateRule,
    parameters: Mapping[str, Tensor],
    layout: ParameterLayout,
    gradients: list[Tensor],
) -> Preconditioner | None:
    """Return the divisor of Adam and RMSprop; None for SGD."""
    if rule.second_moment is None:
        return None
    decay = None if rule.decoupled else _decay(optimizer, parameters, layout)
    state = [_second_moment(optimizer, rule, parameters[name]) for name in layout.names]
    is_given = all(tensor is not None for tensor in state)
    if is_given:
        moments = layout.join(state)
    else:
        stacked = torch.stack(gradients)
        if decay is not None:
            weights = layout.join([parameters[name].detach() for name in layout.names])
            stacked = stacked + decay * weights  # the optimizer squares the sum
        moments = stacked.square().mean(dim=0)
    scale = moments.sqrt() + rule.epsilon
    # an entry without a gradient does not move: its step is not infinite
    floor = 1e-6 * float(scale.max()) + torch.finfo(scale.dtype).tiny
    if decay is not None and gradients:  # entries that the loss ignores cannot make it unstable
        decay = decay * torch.stack(gradients).any(dim=0)
    return Preconditioner(scale.clamp(min=floor), is_given, decay)


def _decay(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], layout: ParameterLayout
) -> Tensor | None:
    """Return the weight decay of every entry; None if all are zero."""
    decays = [float(group["weight_decay"]) for group in optimizer.param_groups]
    return _entries(optimizer, decays, 0.0, parameters, layout) if any(decays) else None


def _entries(
    optimizer: Optimizer,
    values: Sequence[float],
    other: float,
    parameters: Mapping[str, Tensor],
    layout: ParameterLayout,
) -> Tensor:
    """Return a value of each group as a flat vector; ``other`` where no group has the entry."""
    groups = zip(optimizer.param_groups, values, strict=True)
    by_parameter = {id(each): value for group, value in groups for each in group["params"]}
    found = [by_parameter.get(id(parameters[name]), other) for name in layout.names]
    sizes = torch.tensor([shape.numel() for shape in layout.shapes])
    return torch.tensor(found, dtype=layout.dtype).repeat_interleave(sizes).to(layout.device)


def _second_moment(optimizer: Optimizer, rule: UpdateRule, parameter: Tensor) -> Tensor | None:
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" in state:  # Adam: corrected for the start at zero
        assert rule.second_moment is not None
        correction = 1 - rule.second_moment ** float(state["step"])
        return torch.as_tensor(state.get("max_exp_avg_sq", state["exp_avg_sq"]) / correction)
    mean = state.get("square_avg")  # RMSprop
    if mean is None:
        return None
    if "grad_avg" in state:  # centered
        mean = (mean - state["grad_avg"].square()).clamp(min=0)
    return torch.as_tensor(mean)
