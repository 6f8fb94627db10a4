"""The tour: one net under several normalizations, measured by everything that normscope has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.tour.claims import tour_claims
from normscope.experiments.tour.parts import (
    THRESHOLD,
    Net,
    curvature,
    depth,
    diagram,
    expected_growth,
    landscape,
    limits,
    skips,
    statements,
    training,
)
from normscope.plots.overview import overview
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

    Args:
        progress: receives the events.
        total: cost of the whole.

    Examples:
        >>> events = []
        >>> weighted = WeightedProgress(events.append, 20)
        >>> with weighted.part("landscape", "batch, seed 0"):  # no event: it was in the store
        ...     pass
        >>> with weighted.part("landscape", "batch, seed 1") as send:
        ...     send("step 1")
        >>> print(events[0])
        landscape: batch, seed 1, step 1, 35 % done (35 % by earlier runs)
    """

    def __init__(self, progress: ProgressCallback, total: int) -> None:
        self._progress = progress
        self._computed, self._kept, self._total = 0, 0, total

    @contextmanager
    def part(self, kind: str, what: str) -> Iterator[Send]:
        """Count one part of the tour.

        Args:
            kind: a name of ``COSTS``.
            what: which of them.

        Yields:
            A function that reports what the part is doing; a part that never calls it was found in
            a store.
        """
        cost, begun = COSTS[kind], -1

        def send(detail: object = "") -> None:
            nonlocal begun
            begun = min(begun + 1, cost - 1)  # not done before it ends
            done = self._computed + self._kept + begun
            stage = f"{kind}: {what}"
            self._progress(Progress(stage, str(detail), done, self._total, "%", kept=self._kept))

        yield send
        if begun < 0:
            self._kept += cost
        else:
            self._computed += cost


def side_by_side(dimension: str, parts: Mapping[Any, xr.Dataset]) -> xr.Dataset:
    """Concatenate datasets along a new dimension; NaN where one of them has no value.

    >>> both = side_by_side("seed", {0: xr.Dataset({"a": 1.0}), 4: xr.Dataset({"a": 2.0})})
    >>> both["a"].sel(seed=4).item()
    2.0
    """
    return xr.concat(
        list(parts.values()),
        xr.Variable(dimension, list(parts)),
        data_vars="all",
        coords="minimal",
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
    )


@dataclass(frozen=True)
class Parts:
    """Computes parts of the tour for every normalization and seed, or takes them from the store.

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
        self, kind: str, what: str, seed: int, measure: Callable[[Send], xr.Dataset], **further: Any
    ) -> xr.Dataset:
        """One part, from the store or computed now.

        Args:
            kind: of the part, a name of ``COSTS``.
            what: which one, for progress messages.
            seed: of its random numbers.
            measure: computes it; receives a function that reports what it is doing.
            **further: its settings in addition to those of the net.

        Returns:
            What was measured.
        """
        parameters = self.net.settings(part=kind, **further)
        key = repr(parameters), seed
        with self.progress.part(kind, f"{what}, seed {seed}") as send:

            def run() -> xr.Dataset:
                send("")  # not if it is in the store
                self._computed.add(key)
                return measure(send)

            if key in self._computed:
                send("")  # one training serves two parts: no earlier run kept it
            return self.store.compute("tour part", parameters, seed, run)

    def each(
        self,
        kind: str,
        measure: Callable[[str, int, Send], xr.Dataset],
        seeds: Sequence[int] | None = None,
        **further: Any,
    ) -> xr.Dataset:
        """A part of every normalization and seed.

        Args:
            kind: of the part.
            measure: computes it from normalization, seed and a function that reports its state.
            seeds: other than all of them.
            **further: settings of the part; a mapping holds one value for each (norm, seed).

        Returns:
            All of them over (norm, seed).
        """
        rows = {}
        for norm in self.norms:
            found = {}
            for seed in self.seeds if seeds is None else seeds:
                own = {key: _own(value, norm, seed) for key, value in further.items()}

                def run(send: Send, norm: str = norm, seed: int = seed) -> xr.Dataset:
                    return measure(norm, seed, send)

                found[seed] = self.one(kind, norm, seed, run, norm=norm, **own)
            rows[norm] = side_by_side("seed", found)
        return side_by_side("norm", rows)


def _own(value: Any, norm: str, seed: int) -> Any:
    return value[norm, seed] if isinstance(value, Mapping) else value


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
    rates = parts.each("learning rate", lambda norm, own, send: limits(net, norm, own, send))
    half = _by_cell(rates["recommended"])
    common, largest = (float(getattr(rates["recommended"], end)()) for end in ("min", "max"))
    found = [
        rates,
        _trained(parts, half, steps),
        _shared(_trained(parts, dict.fromkeys(half, largest), steps)).assign(shared_rate=largest),
        _watched(parts, common, watched_steps, every),
        _curved(parts, spectrum_probes, spectrum_products),
        _depth(parts, deep_layers),
        _statements(parts, half.get(("batch", seed), common), min(steps, 50)),
        _phases(parts, gammas, learning_rates, epochs),
    ]
    return _joined(found, net, common)


def _trained(parts: Parts, rates: dict[tuple[str, int], float], steps: int) -> xr.Dataset:
    """Trainings, each at a rate of its own."""

    def measure(norm: str, own: int, send: Send) -> xr.Dataset:
        return training(parts.net, norm, own, rates[norm, own], steps)

    return parts.each("training", measure, rate=rates, steps=steps)


def _shared(trained: xr.Dataset) -> xr.Dataset:
    """Trainings at a rate that all share, under names of their own."""
    return trained.rename({str(name): f"shared_{name}" for name in trained.data_vars})


def _watched(parts: Parts, rate: float, steps: int, every: int) -> xr.Dataset:
    """Trainings under the scope, all at one rate."""

    def measure(norm: str, own: int, send: Send) -> xr.Dataset:
        return landscape(parts.net, norm, own, rate, steps, every)

    return parts.each("landscape", measure, rate=rate, steps=steps, every=every)


def _curved(parts: Parts, probes: int, products: int) -> xr.Dataset:
    """Spectra of the first seed's nets."""
    samples = 2 * parts.net.batch_size

    def measure(norm: str, own: int, send: Send) -> xr.Dataset:
        return curvature(parts.net, norm, own, samples, probes, products)

    first = parts.seeds[:1]
    settings = {"samples": samples, "probes": probes, "products": products}
    return parts.each("curvature", measure, first, **settings).isel(seed=0, drop=True)


def _depth(parts: Parts, layers: int) -> xr.Dataset:
    """Gradients through depth, plain and with skips."""
    net = parts.net

    def measure(norm: str, own: int, send: Send) -> xr.Dataset:
        return depth(net, norm, own, layers)

    plain = parts.each("depth", measure, layers=layers)
    residual = {
        own: parts.one(
            "depth", "skips", own, partial(_with_skips, net, own, layers), layers=layers, skips=True
        )
        for own in parts.seeds
    }
    both = xr.merge([plain, side_by_side("seed", residual)], compat="equals", join="outer")
    return both.assign(expected_growth=expected_growth(net))


def _with_skips(net: Net, own: int, layers: int, send: Send) -> xr.Dataset:
    return skips(net, own, layers)


def _statements(parts: Parts, rate: float, steps: int) -> xr.Dataset:
    """The theorems on the first seed's net."""
    net, own = parts.net, parts.seeds[0]
    samples = min(net.batch_size, 64)

    def measure(send: Send) -> xr.Dataset:
        return statements(net, own, rate, steps, samples)

    settings = {"rate": rate, "steps": steps, "samples": samples}
    return parts.one("theorems", "batch", own, measure, **settings)


def _phases(
    parts: Parts, gammas: Sequence[float], rates: Sequence[float], epochs: float
) -> xr.Dataset:
    """The phase diagram of the first seed; its trainings are records of their own."""
    with parts.progress.part("phase diagram", f"{len(gammas) * len(rates)} trainings") as send:
        send("")
        return diagram(parts.net, gammas, rates, epochs, parts.seeds[:1], parts.store, send)


def _by_cell(rates: xr.DataArray) -> dict[tuple[str, int], float]:
    return {
        (str(norm), int(own)): float(rates.sel(norm=norm, seed=own))
        for norm in rates["norm"].values
        for own in rates["seed"].values
    }


def _joined(found: Sequence[xr.Dataset], net: Net, common: float) -> xr.Dataset:
    joined = xr.merge(found, compat="equals", join="outer", combine_attrs="drop_conflicts")
    joined = joined.assign(common_rate=common)
    joined["theory"].attrs["missing"] = "the theory covers none of these nets"
    joined["lambda_max"].attrs["missing"] = "no mode applies"
    return joined.assign_attrs(net.settings(linear_threshold=THRESHOLD))
