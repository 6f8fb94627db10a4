"""The tour: one net under several normalizations, measured by everything that normscope has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment, side_by_side
from normscope.experiments.tour.claims import tour_claims
from normscope.experiments.tour.parts import (
    THRESHOLD,
    Net,
    curvature,
    depth,
    diagram,
    landscape,
    limits,
    skips,
    statements,
    training,
)
from normscope.experiments.yang2019.growth import batch_growth
from normscope.plots.overview import overview
from normscope.problem.threads import suitable_threads, thread_count
from normscope.progress import Progress, ProgressCallback
from normscope.results import Store

Send = Callable[[object], None]  # takes a progress event or a string

# Cost of each part: tenths of a second that it takes at small scale on one core.
COSTS = {
    "learning rate": 18,
    "training": 2,
    "landscape": 7,
    "curvature": 19,
    "depth": 1,
    "theorems": 54,
    "phase diagram": 25,
}


def total_cost(norms: int, seeds: int) -> int:
    """Return the cost of a whole tour of so many normalizations and seeds."""
    for_each = ("learning rate", "training", "training", "landscape", "depth")
    return (
        norms * seeds * sum(COSTS[kind] for kind in for_each)
        + norms * COSTS["curvature"]
        + seeds * COSTS["depth"]  # with skip connections
        + COSTS["theorems"]
        + COSTS["phase diagram"]
    )


class WeightedProgress:
    """Sends progress events in which each part counts by its cost.

    A part found in a store counts as kept: it is done, but took no time in this run.
    """

    def __init__(self, progress: ProgressCallback, total: int) -> None:
        self._progress = progress
        self._computed, self._kept, self._total = 0, 0, total
        self._stage, self._cost, self._begun = "", 0, -1  # of the part under way

    @contextmanager
    def part(self, kind: str, what: str) -> Iterator[Send]:
        """Count one part, of a kind in ``COSTS``; one that never sends was found in a store."""
        self._stage, self._cost, self._begun = f"{kind}: {what}", COSTS[kind], -1
        yield self.send
        if self._begun < 0:
            self._kept += self._cost
        else:
            self._computed += self._cost

    def send(self, detail: object = "") -> None:
        """Report what the part under way is doing."""
        self._begun = min(self._begun + 1, self._cost - 1)  # not done before it ends
        done, kept = self._computed + self._kept + self._begun, self._kept
        self._progress(Progress(self._stage, str(detail), done, self._total, "%", kept=kept))


@dataclass(frozen=True)
class Parts:
    """Computes parts of the tour, or takes them from the store.

    Args:
        net: the network.
        norms: its normalizations.
        seeds: of weights and order of the data.
        store: keeps each part.
        progress: counts the parts.
    """

    net: Net
    norms: Sequence[str]
    seeds: Sequence[int]
    store: Store
    progress: WeightedProgress
    _computed: set[tuple[str, int]] = field(default_factory=set, init=False)  # by this run

    def one(
        self, kind: str, what: str, seed: int, measure: Callable[[], xr.Dataset], **settings: Any
    ) -> xr.Dataset:
        """Return one part, which the store finds by kind, settings of net and part, and seed."""
        parameters = self.net.settings(part=kind, **settings)
        key = repr(parameters), seed
        with self.progress.part(kind, f"{what}, seed {seed}") as send:

            def run() -> xr.Dataset:
                send("")  # not if it is in the store
                self._computed.add(key)
                return measure()

            if key in self._computed:
                send("")  # one training serves two parts: no earlier run kept it
            return self.store.compute("tour part", parameters, seed, run)

    def each(
        self, kind: str, measure: Callable[..., xr.Dataset], first: bool = False, **settings: Any
    ) -> xr.Dataset:
        """Return a part of every normalization and seed (or the first), over (norm, seed).

        A setting over (norm, seed) is taken there.
        """

        def measured(norm: str, seed: int) -> xr.Dataset:
            own = {
                name: float(value.sel(norm=norm, seed=seed)) if hasattr(value, "sel") else value
                for name, value in settings.items()
            }
            run = partial(measure, self.net, norm, seed, **own)
            return self.one(kind, norm, seed, run, norm=norm, **own)

        seeds = self.seeds[:1] if first else self.seeds
        rows = {
            norm: side_by_side("seed", {seed: measured(norm, seed) for seed in seeds})
            for norm in self.norms
        }
        return side_by_side("norm", rows)


NORMS = ("none", "batch", "noisy", "l1", "layer")
QUICK: dict[str, Any] = {
    "norms": ("none", "batch", "layer"),
    "width": 24,
    "layers": 3,
    "batch_size": 64,
    "steps": 12,
    "watched_steps": 6,
    "every": 2,
    "deep_layers": 6,
    "spectrum_probes": 2,
    "spectrum_products": 8,
    "gammas": (0.3, 1.0),
    "learning_rates": (0.1, 3.0),
    "epochs": 1.0,
    "seeds": 1,
}


@experiment(
    "tour",
    claims=tour_claims,
    figure=overview,
    scales={"quick": QUICK, "small": {}, "paper": {"width": 1000, "seeds": 5, "epochs": 5.0}},
)
def tour(
    *,
    data: str = "digits",
    norms: Sequence[str] = NORMS,
    width: int = 200,
    layers: int = 4,
    batch_size: int = 128,
    momentum: float = 0.9,
    steps: int = 100,
    watched_steps: int = 60,
    every: int = 5,
    deep_layers: int = 16,
    spectrum_probes: int = 4,
    spectrum_products: int = 40,
    gammas: Sequence[float] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    learning_rates: Sequence[float] = tuple(np.geomspace(0.003, 30, 13).round(5).tolist()),
    epochs: float = 2.0,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """One net under several normalizations: limits, landscape, curvature, depth, theorems, phases.

    A fully connected ReLU net under the cross-entropy. Each normalization's own learning-rate limit
    comes first; all are then trained at half of it, at half the largest of the limits, and, watched
    by the scope, at half the smallest.

    Reference: santurkar2018; wei2018; yang2019.

    Args:
        data: a registered data set with classes.
        norms: normalizations to compare.
        width: units of a hidden layer.
        layers: linear layers of the net.
        batch_size: samples per step.
        momentum: of SGD.
        steps: of the trainings at half the own and half the largest limit.
        watched_steps: of the training under the scope.
        every: steps of it from one measurement to the next.
        deep_layers: linear layers of the net whose gradients are followed through depth.
        spectrum_probes: random directions of the Hessian's spectrum.
        spectrum_products: products with the Hessian for each of them.
        gammas: of the phase diagram: initial scales of BatchNorm.
        learning_rates: of the phase diagram.
        epochs: of each of its trainings.
        seeds: repetitions, each with its own weights and order of the data.
        seed: first seed; the others follow it.
        store: keeps each part.
        progress: called with a label before each part.

    Returns:
        All parts, over norm and seed: rates, training curves (training_step) at half the own limit
        and, with ``shared_``, at half the largest, landscape (step, distance, layer), spectrum of
        the first seed (point), gradients by depth (depth_layer), verdicts on the first seed's net
        (verdict), phase diagram (gamma, learning_rate, diagram_seed; closure).
    """
    net = Net(data, width, layers, batch_size, momentum)
    weighted = WeightedProgress(progress, total_cost(len(norms), seeds))
    parts = Parts(net, list(norms), range(seed, seed + seeds), store, weighted)
    spectrum: dict[str, Any] = {"probes": spectrum_probes, "products": spectrum_products}
    with thread_count(suitable_threads(net.problem(norms[0], seed), net.batch())):
        limit = parts.each("learning rate", partial(limits, progress=weighted.send))
        half = limit["recommended"]
        common, largest = float(half.min()), float(half.max())
        shared = parts.each("training", training, rate=largest, steps=steps)
        own = float(half.sel(norm="batch", seed=seed)) if "batch" in norms else common
        found = [
            limit,
            parts.each("training", training, rate=half, steps=steps),
            shared.rename({str(name): f"shared_{name}" for name in shared.data_vars}),
            parts.each("landscape", landscape, rate=common, steps=watched_steps, every=every),
            parts.each("curvature", curvature, first=True, samples=2 * batch_size, **spectrum).isel(
                seed=0, drop=True
            ),
            parts.each("depth", depth, layers=deep_layers),
            _with_skips(parts, deep_layers),
            _statements(parts, own, min(steps, 50)),
        ]
        with weighted.part("phase diagram", f"{len(gammas) * len(learning_rates)} trainings"):
            weighted.send()
            found.append(diagram(net, gammas, learning_rates, epochs, seed, store, weighted.send))
    joined = xr.merge(found, compat="equals", join="outer", combine_attrs="drop_conflicts")
    joined["theory"].attrs["missing"] = "the theory covers none of these nets"
    joined["lambda_max"].attrs["missing"] = "no mode applies"
    growth = batch_growth("relu", batch_size)
    return joined.assign(
        common_rate=common, shared_rate=largest, expected_growth=growth
    ).assign_attrs(net.settings(linear_threshold=THRESHOLD))


def _with_skips(parts: Parts, layers: int) -> xr.Dataset:
    """Return the growth of gradients through depth with skip connections."""
    found = {}
    for own in parts.seeds:
        measure = partial(skips, parts.net, own, layers=layers)
        found[own] = parts.one("depth", "skips", own, measure, layers=layers, skips=True)
    return side_by_side("seed", found)


def _statements(parts: Parts, rate: float, steps: int) -> xr.Dataset:
    """Return the verdicts on the theorems for the first seed's net."""
    own = parts.seeds[0]
    samples = min(parts.net.batch_size, 64)
    settings: dict[str, Any] = {"rate": rate, "steps": steps, "samples": samples}
    measure = partial(statements, parts.net, own, **settings)
    return parts.one("theorems", "batch", own, measure, **settings)


def seconds_in_store(store: Store, settings: Mapping[str, Any]) -> float:
    """Return the seconds of the parts of a tour with these settings that a store has already."""
    names = ("data", "width", "layers", "batch_size", "momentum")
    net = Net(*(settings[name] for name in names)).settings()
    seeds = range(settings["seed"], settings["seed"] + settings["seeds"])
    return sum(
        record.seconds or 0.0
        for record in store.select()
        if record.state.has_result
        and record.seed in seeds
        and net.items() <= record.parameters.items()
    )
