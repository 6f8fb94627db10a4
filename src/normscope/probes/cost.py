"""The cost of measuring, in forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.text import Rendered, Table

if TYPE_CHECKING:
    from normscope.probes.probe import Probe

FORWARD = 1 / 3  # cost of a forward pass, in forward and backward passes


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
