"""What an optimizer makes of one gradient after another."""

from __future__ import annotations

from torch import Tensor

from normscope.learning_rate.rules import UpdateRule

__all__ = ["Updates"]


class Updates:
    """An optimizer's steps from its first on, for one vector or for several trainings side by side.

    What it remembers of earlier gradients is made when it is first needed.

    Args:
        rule: of the optimizer.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule
        self._memory: dict[str, Tensor] = {}
        self._taken = 0

    def apply(self, value: Tensor, gradient: Tensor, rate: Tensor | float) -> None:
        """Move parameters by one step, in place.

        Args:
            value: the parameters.
            gradient: of the loss there, in the same shape.
            rate: the learning rate, or one for each training in the shape (trainings, 1, ...).
        """
        rule = self._rule
        self._taken += 1
        if rule.decoupled:
            value.mul_(1 - rate * rule.weight_decay)
        elif rule.weight_decay:
            gradient = gradient.add(value, alpha=rule.weight_decay)
        if isinstance(rate, Tensor):
            value.addcmul_(rate, self._step(gradient), value=-1)
        else:
            value.sub_(self._step(gradient), alpha=rate)

    def keep(self, chosen: Tensor) -> None:
        """Go on with some of the trainings.

        Args:
            chosen: whether each is one of them, (trainings,).
        """
        self._memory = {name: each[chosen] for name, each in self._memory.items()}

    def _step(self, gradient: Tensor) -> Tensor:
        rule = self._rule
        if rule.second_moment is not None:
            return self._divided_step(gradient, rule.second_moment)
        if rule.momentum == 0:
            return gradient
        if self._taken == 1:  # torch's first buffer
            velocity = self._memory["velocity"] = gradient.clone()
        else:
            velocity = self._memory["velocity"].mul_(rule.momentum)
            velocity.add_(gradient, alpha=1 - rule.dampening)
        return gradient + rule.momentum * velocity if rule.nesterov else velocity

    def _divided_step(self, gradient: Tensor, decay: float) -> Tensor:
        rule = self._rule
        square = self._averaged("square", gradient.square(), decay)
        if rule.corrected:  # Adam
            mean = self._averaged("mean", gradient, rule.momentum)
            mean = mean / (1 - rule.momentum**self._taken)
            if rule.amsgrad:
                square = square.maximum(self._memory.get("largest", square))
                self._memory["largest"] = square
            return mean / ((square / (1 - decay**self._taken)).sqrt() + rule.epsilon)
        if rule.centered:
            square = (square - self._averaged("mean", gradient, decay).square()).clamp(min=0)
        divided = gradient / (square.sqrt() + rule.epsilon)
        if self._taken > 1:
            divided += rule.momentum * self._memory["velocity"]
        self._memory["velocity"] = divided
        return divided

    def _averaged(self, name: str, value: Tensor, decay: float) -> Tensor:
        """A running mean that begins at zero."""
        fresh = (1 - decay) * value
        if self._taken > 1:
            fresh += decay * self._memory[name]
        self._memory[name] = fresh
        return fresh
