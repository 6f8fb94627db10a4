"""The base class of probes, their registry, the named sets of them, and their cost."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from normscope.errors import ArgumentTypeError, InputError, StateError, UnknownNameError
from normscope.probes.schedule import check_every
from normscope.registry import Registry, unknown_name
from normscope.text import Rendered, Table
from normscope.warn import warn

if TYPE_CHECKING:
    from typing import Self

    from torch.optim import Optimizer

    from normscope.probes.context import StepContext
    from normscope.probes.execution import ForwardHooks

Values: TypeAlias = dict[str, Any]  # arrays by name
Dimensions: TypeAlias = dict[str, tuple[str, ...]]


class _ProbeRegistry(Registry["type[Probe]"]):
    """A registry whose classes get the name they are registered by."""

    def _add(self, item: type[Probe], name: str) -> type[Probe]:
        item.name = name
        return super()._add(item, name)


PROBES = _ProbeRegistry("probe", package="normscope.probes")
"""The probes by name: every class of this package with the decorator."""

PRESETS: Registry[Callable[[], list[Probe]]] = Registry("preset")
"""Sets of probes by name: economy, standard, full and all."""

FORWARD = 1 / 3  # cost of a forward pass, in forward and backward passes
_HISTOGRAM_BINS = 40  # of the preset "full"


@dataclass(frozen=True)
class Cost:
    """Passes of one measured step, beyond the gradient at the parameters and the ray's points.

    Args:
        passes: forward and backward passes; a forward pass alone counts as a third.
        note: what they are for.
        exact: whether the number is known in advance; else it is an estimate.
    """

    passes: float
    note: str = ""
    exact: bool = True


class Probe(ABC):
    """A measurement that is taken at some steps of a training.

    Args:
        every: minimum number of training steps between two measurements; None: at every step
            that the scope measures.
    """

    #: Set by the decorator ``PROBES.register(name=...)``.
    name: ClassVar[str]
    #: What it needs of the points on the ray: None, "losses" or "gradients".
    ray: ClassVar[str | None] = None
    #: Whether it needs the gradient at the parameters.
    needs_gradient: ClassVar[bool] = True
    #: Whether it needs the pass at the parameters itself: its layers and activations.
    needs_pass: ClassVar[bool] = True
    #: Whether it needs a learning rate.
    needs_learning_rate: ClassVar[bool] = False
    #: Whether it needs the optimizer's update, ``context.updated_parameters``.
    needs_update: ClassVar[bool] = False
    #: Whether the next step completes its values.
    needs_next: ClassVar[bool] = False

    def __init__(self, every: int | None = None) -> None:
        self.every = None if every is None else check_every(every, f"every of {self.name}")
        self._last: int | None = None
        self._has_warned = False

    @property
    @abstractmethod
    def variables(self) -> Dimensions:
        """Names of what it measures, each with its dimensions after ``step``."""

    def fresh(self, seed: int) -> Self:
        """Return a probe with the same settings and no history, for one scope.

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
        """Clear the state of earlier steps; called once, at the beginning."""
        return

    def check_optimizer(self, optimizer: Optimizer | None) -> None:
        """Raise if the probe cannot measure what it is asked for with an optimizer."""
        return

    def due(self, step: int) -> bool:
        """Return whether to measure at a step that the scope measures."""
        return self.every is None or self._last is None or step - self._last >= self.every

    def mark_measured(self, step: int) -> None:
        """Record the step of the last measurement."""
        self._last = step

    def state_dict(self) -> dict[str, Any]:
        """Return what later measurements depend on, as tensors and plain types.

        A probe that keeps more between steps than the step of its last measurement overrides
        this and `load_state_dict`, so that a resumed training measures the same.

        Raises:
            StateError: if the probe has a `reset` of its own, but no `state_dict`.
        """
        own = type(self)
        if own.reset is not Probe.reset and own.state_dict is Probe.state_dict:
            raise StateError(
                f"the probe {self.name!r} keeps something between steps (it has a reset), but no "
                "state_dict that saves it; write one, or measure without it."
            )
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._last = state["last"]

    def add_hooks(self, hooks: ForwardHooks) -> None:
        """Add hooks to the forward pass at the parameters."""
        return

    @abstractmethod
    def measure(self, context: StepContext) -> Values:
        """Return the values of this step.

        Args:
            context: the model, the batch and everything that the probes share.

        Returns:
            An array for each of ``variables``.
        """

    def measure_next(self, context: StepContext) -> Values:
        """Return the values that need the step after the measured one; with ``needs_next``."""
        return {}

    def missing(self, names: Iterable[str], reason: str) -> Values:
        """Return NaN for values that cannot be measured, and warn once.

        Args:
            names: of the values.
            reason: for the warning.

        Returns:
            NaN by name.
        """
        if not self._has_warned:
            self._has_warned = True
            warn(f"{self.name} cannot be measured here, its values are NaN: {reason}")
        return dict.fromkeys(names, np.nan)

    def coordinates(self, context: StepContext) -> dict[str, Any]:
        """Return the labels of the probe's own dimensions, for xarray."""
        return {}

    def cost(self, layers: int, points: int) -> Cost:
        """Return the passes of a measurement beyond those that all probes share.

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


ProbeChoice: TypeAlias = str | Probe | Iterable[str | Probe]


@PRESETS.register
def economy() -> list[Probe]:
    """The loss along the gradient, gradient norms and statistics: forward passes on the ray."""
    return [PROBES[name]() for name in ("loss_variation", "gradient_norms", "statistics_gap")]


@PRESETS.register
def standard() -> list[Probe]:
    """The landscape along the gradient, with norms, statistics and moments of each layer."""
    landscape = ("loss_variation", "gradient_predictiveness", "effective_smoothness")
    names = (*landscape, "gradient_norms", "activation_moments", "statistics_gap")
    return [PROBES[name]() for name in names]


@PRESETS.register
def full() -> list[Probe]:
    """Every probe, with the local smoothness and histograms of the activations."""
    settings: dict[str, dict[str, int | bool]] = {
        "effective_smoothness": {"local": True},
        "activation_moments": {"bins": _HISTOGRAM_BINS},
    }
    return [PROBES[name](**settings.get(name, {})) for name in PROBES]


@PRESETS.register(name="all")
def every_probe() -> list[Probe]:
    """Every probe with its defaults."""
    return [PROBES[name]() for name in PROBES]


def choose_probes(choice: ProbeChoice) -> list[Probe]:
    """Return the probes that a user asks for.

    Args:
        choice: a preset, a probe's name, a configured probe, or several names and probes.

    Returns:
        The probes; each kind once.

    Raises:
        ArgumentTypeError: if an item is neither a name nor a probe.
        InputError: if there is none, or one twice.
        UnknownNameError: if a name is unknown, or a preset is in a list.

    >>> [probe.name for probe in choose_probes("economy")]
    ['loss_variation', 'gradient_norms', 'statistics_gap']
    """
    if isinstance(choice, str) and choice in PRESETS:
        return PRESETS[choice]()
    if not isinstance(choice, Iterable | Probe):
        raise ArgumentTypeError(
            "probes takes a preset, a name, a probe such as CovariateShift() or a list of them, "
            f"got {_describe(choice)}."
        )
    items = [choice] if isinstance(choice, str | Probe) else list(choice)
    probes = [_probe(item, alone=isinstance(choice, str)) for item in items]
    names = [probe.name for probe in probes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"the probe {twice[0]!r} is asked for twice; give it once.")
    if not probes:
        raise InputError("no probe is asked for; give at least one, or a preset.")
    return probes


def _probe(item: str | Probe, alone: bool) -> Probe:
    if isinstance(item, Probe):
        return item
    if not isinstance(item, str):
        raise ArgumentTypeError(
            f"probes takes names and probes such as CovariateShift(), got {_describe(item)}."
        )
    if item in PROBES:
        return PROBES[item]()
    if item in PRESETS:  # in a list: alone it was taken already
        own = ", ".join(probe.name for probe in PRESETS[item]())
        raise UnknownNameError(
            f"{item!r} is a preset, not a probe, and must be given alone: probes={item!r}; or list "
            f"its probes ({own}) with yours."
        )
    if alone:
        raise unknown_name("probe or preset", item, [*PROBES, *PRESETS])
    raise unknown_name("probe", item, PROBES)


def _describe(item: object) -> str:
    return f"the class {item.__name__}; call it" if isinstance(item, type) else repr(item)


@dataclass(frozen=True)
class ScopeCost(Rendered):
    """Passes of one measured step.

    Args:
        shared: the gradient at the parameters, or a forward pass there: at most one pass.
        ray: the points on the gradient's ray, shared by the probes that use them.
        probes: what each probe adds.
        every: steps from one measurement to the next; None if unknown.
    """

    shared: float
    ray: float
    probes: dict[str, Cost]
    every: int | None

    @property
    def passes(self) -> float:
        """Total forward and backward passes; a forward pass alone counts as a third."""
        return self.shared + self.ray + sum(cost.passes for cost in self.probes.values())

    @property
    def overhead(self) -> float | None:
        """Estimated share of the training time, with one pass per training step."""
        return None if self.every is None else self.passes / self.every

    def __str__(self) -> str:
        lines = [f"about {self.passes:.3g} forward+backward passes per measured step:"]
        lines.append(f"  {self.shared:.3g}  the pass at the parameters, shared by all probes")
        if self.ray:
            lines.append(f"  {self.ray:.3g}  the points on the ray, shared by all that use them")
        for name, cost in self.probes.items():
            about = "" if cost.exact else "about "
            lines.append(f"  {about}{cost.passes:.3g}  {name}: {cost.note}")
        if self.overhead is not None:
            lines.append(f"measured every {self.every} steps: {self.overhead:.1%} of the training")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; of each probe its passes."""
        probes = {name: cost.passes for name, cost in self.probes.items()}
        numbers = {"passes": self.passes, "shared": self.shared, "ray": self.ray}
        return {**numbers, "probes": probes, "every": self.every, "overhead": self.overhead}

    def _table(self) -> Table:
        shared = {"the pass at the parameters": self.shared, "the points on the ray": self.ray}
        rows: list[dict[str, object]] = [
            {"passes": passes, "of": part, "note": ""} for part, passes in shared.items() if passes
        ]
        for name, cost in self.probes.items():
            rows.append({"passes": cost.passes, "of": name, "note": cost.note})
        lines = str(self).splitlines()
        return Table(rows, lines[0].rstrip(":"), [] if self.every is None else lines[-1:])


def scope_cost(probes: Sequence[Probe], layers: int, points: int, every: int | None) -> ScopeCost:
    """Return the cost of measuring with these probes.

    Args:
        probes: what is measured.
        layers: number of layers of the model.
        points: number of points on the ray.
        every: steps from one measurement to the next; None if unknown.

    Returns:
        The estimate; probes with their own ``every`` count as if always due.
    """
    needs = {probe.ray for probe in probes}
    ray = points * (1.0 if "gradients" in needs else FORWARD if "losses" in needs else 0.0)
    shared = 1.0 if any(probe.needs_gradient for probe in probes) else FORWARD
    costs = {probe.name: probe.cost(layers, points) for probe in probes}
    added = {name: cost for name, cost in costs.items() if cost.passes}
    return ScopeCost(shared, ray, added, every)
