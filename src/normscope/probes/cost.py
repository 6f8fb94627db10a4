"""What a scope's measuring costs, in passes and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.probes.probe import Cost, Probe

__all__ = ["FORWARD", "ScopeCost", "scope_cost"]

FORWARD = 1 / 3  # of a forward and backward pass


@dataclass(frozen=True)
class ScopeCost:
    """Passes of one measured step.

    Args:
        shared: the gradient at the parameters, or the look at them: one pass at most.
        ray: the points on the gradient's ray, whichever probes use them.
        probes: what each probe adds.
        every: steps from one measurement to the next; None if that is not known.
    """

    shared: float
    ray: float
    probes: dict[str, Cost]
    every: int | None

    @property
    def passes(self) -> float:
        """Forward and backward passes in all; a forward pass alone counts as a third."""
        return self.shared + self.ray + sum(cost.passes for cost in self.probes.values())

    @property
    def overhead(self) -> float | None:
        """Estimated share of the training time, a training step taken as one pass."""
        return None if self.every is None else self.passes / self.every

    def __str__(self) -> str:
        lines = [f"about {self.passes:.3g} forward+backward passes per measured step:"]
        lines.append(f"  {self.shared:.3g}  the gradient at the parameters, or a look at them")
        if self.ray:
            lines.append(f"  {self.ray:.3g}  the points on the ray, shared by all that use them")
        for name, cost in self.probes.items():
            about = "" if cost.exact else "about "
            lines.append(f"  {about}{cost.passes:.3g}  {name}: {cost.note}")
        if self.overhead is not None:
            lines.append(f"measured every {self.every} steps: {self.overhead:.1%} of the training")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        shared = {"the gradient at the parameters": self.shared, "the points on the ray": self.ray}
        rows: list[dict[str, object]] = [
            {"passes": passes, "of": part, "note": ""} for part, passes in shared.items() if passes
        ]
        for name, cost in self.probes.items():
            rows.append({"passes": cost.passes, "of": name, "note": cost.note})
        lines = str(self).splitlines()
        return table_html(rows, lines[0].rstrip(":"), "" if self.every is None else lines[-1])


def scope_cost(probes: Sequence[Probe], layers: int, points: int, every: int | None) -> ScopeCost:
    """The cost of measuring with these probes.

    Args:
        probes: what is measured.
        layers: number of layers of the model.
        points: number of points on the ray.
        every: steps from one measurement to the next; None if that is not known.

    Returns:
        The estimate; probes with a schedule of their own are counted as if always due.
    """
    asked = {probe.ray for probe in probes}
    ray = points * (1.0 if "gradients" in asked else FORWARD if "losses" in asked else 0.0)
    shared = 1.0 if any(probe.needs_gradient for probe in probes) else FORWARD
    costs = {probe.name: probe.cost(layers, points) for probe in probes}
    added = {name: cost for name, cost in costs.items() if cost.passes}
    return ScopeCost(shared, ray, added, every)
