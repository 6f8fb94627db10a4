"""What a probe is: a measurement with a name, declared dimensions and a declared cost."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from normscope.errors import NormscopeWarning
from normscope.probes.schedule import checked_every
from normscope.registry import Registry

if TYPE_CHECKING:
    from typing import Self

    from normscope.probes.execution import Watch
    from normscope.probes.moment import Moment

__all__ = ["PROBES", "Cost", "Dimensions", "Probe", "Values"]

Values: TypeAlias = dict[str, Any]  # arrays by name
Dimensions: TypeAlias = dict[str, tuple[str, ...]]

_PARTS = (
    *("loss_variation", "gradient_predictiveness", "effective_smoothness", "covariate_shift"),
    *("activation_moments", "gradient_norms", "curvature", "statistics_gap"),
)
PROBES: Registry[type[Probe]] = Registry("probe", [f"normscope.probes.{part}" for part in _PARTS])
"""The probes by name; a class is registered where it is defined."""


@dataclass(frozen=True)
class Cost:
    """Passes of one measured step, beyond the gradient at the parameters and the ray's points.

    Args:
        passes: forward and backward passes; a forward pass alone counts as a third.
        note: how it comes about, in words.
        exact: whether it is known in advance; else it is about so many.
    """

    passes: float
    note: str = ""
    exact: bool = True


class Probe(ABC):
    """One measurement, taken at some steps of a training.

    Args:
        every: at least so many training steps from one measurement to the next; None: at every
            step that the scope measures.
    """

    name: ClassVar[str]
    #: What it asks of the ray's points: nothing, their "losses" or their "gradients".
    ray: ClassVar[str | None] = None
    #: Whether it asks for the gradient at the parameters.
    needs_gradient: ClassVar[bool] = True
    #: Whether it asks for the pass at the parameters itself: its layers and activations.
    needs_pass: ClassVar[bool] = True
    #: Whether it asks for a learning rate.
    needs_learning_rate: ClassVar[bool] = False
    #: Whether it asks for the update that the optimizer would take.
    needs_update: ClassVar[bool] = False
    #: Whether its values are complete only after a look at the next step.
    needs_next: ClassVar[bool] = False

    def __init__(self, every: int | None = None) -> None:
        self.every = None if every is None else checked_every(every, f"every of {self.name}")
        self._last: int | None = None
        self._has_warned = False

    @property
    @abstractmethod
    def variables(self) -> Dimensions:
        """Names of what it measures, each with its dimensions after ``step``."""

    def begin(self, seed: int) -> Self:
        """A probe with the same settings and no past, for one scope.

        Args:
            seed: the scope's.

        Returns:
            The new probe.
        """
        fresh = copy.copy(self)
        fresh._last = None
        fresh._has_warned = False
        fresh.reset(seed)
        return fresh

    def reset(self, seed: int) -> None:
        """Forget what earlier steps left; called once, at the beginning."""
        return

    def due(self, step: int) -> bool:
        """Whether to measure at a step that the scope measures."""
        return self.every is None or self._last is None or step - self._last >= self.every

    def measured(self, step: int) -> None:
        """Note that a measurement was taken."""
        self._last = step

    def watch(self, watch: Watch) -> None:
        """Prepare to see the forward pass at the parameters: hooks may be set by ``watch``."""
        return

    @abstractmethod
    def measure(self, moment: Moment) -> Values:
        """The values of this step.

        Args:
            moment: the model, the batch and all that the probes share.

        Returns:
            An array for each of ``variables``.
        """

    def complete(self, moment: Moment) -> Values:
        """What only the step after the measured one shows; with ``needs_next``."""
        return {}

    def without(self, names: Iterable[str], reason: str) -> Values:
        """NaN in place of values that cannot be had; says why, once, and lets the training go on.

        Args:
            names: of the values.
            reason: in words.

        Returns:
            Nothing for each, which shows as NaN.
        """
        if not self._has_warned:
            self._has_warned = True
            message = f"{self.name} cannot be measured here, its values are NaN: {reason}"
            warnings.warn(message, NormscopeWarning, stacklevel=2)
        return dict.fromkeys(names, np.nan)

    def coordinates(self, moment: Moment) -> dict[str, Any]:
        """Labels of dimensions of its own, for xarray."""
        return {}

    def cost(self, layers: int, points: int) -> Cost:
        """Passes of a measurement beyond those that all probes share.

        Args:
            layers: number of layers of the model.
            points: number of points on the ray.

        Returns:
            The cost.
        """
        return Cost(0)

    def __repr__(self) -> str:
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and v is not None}
        inside = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return f"{type(self).__name__}({inside})"
