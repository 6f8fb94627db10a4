"""Gradient explosion: measured growth per layer and the claims about it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from normscope.data import gaussian_inputs
from normscope.experiments.recipe import experiment
from normscope.experiments.yang2019.growth import (
    ACTIVATIONS,
    ARCHITECTURES,
    Stack,
    batch_growth,
    distinct,
    integer,
    integers,
    layer_growth,
    residual_growth,
    squared_gradients,
)
from normscope.plots.depth import gradient_growth
from normscope.progress import Progress, ProgressCallback
from normscope.registry import unknown_name
from normscope.results import Claim, Store
from normscope.results.claim import DECISION, ENOUGH_SEEDS, decide_all, decide_below, mark_beyond

LIMIT = math.pi / (math.pi - 1)
TO_LIMIT = (
    "For ReLU the growth of the gradient norm per layer decreases to pi / (pi - 1) = 1.467 as the "
    "batch size tends to infinity."
)
EVERY = (
    "A deep batchnorm network suffers from gradient explosion at initialization, whatever its "
    "nonlinearity; the growth per layer decreases as the batch size increases."
)
EXPONENTIAL = (
    "With L layers the gradient of the first layer's weights has norm above c lambda^L, for some "
    "lambda > 1."
)
RELIEF = "The explosion is only relieved by skip connections in the fashion of residual networks."
NEAR = 0.02  # relative distance from the limit
STEADY, GROWS = 0.1, 1.2  # relative range of the factor over depths, and the least factor
RELIEVED = 0.5  # of the logarithm of the growth without skip connections
ARTICLE = "yang2019, by the encyclopaedia article, section on vanishing and exploding gradients"
DERIVED = "yang2019, derived for every batch in normscope.experiments.yang2019.growth"
INPUTS = 1000  # features of the Gaussian inputs: with few, the batch's samples are alike
WIDE = 500  # least width at which the theory of infinite width is judged
SIZE = f"width {WIDE} or more, batches of 256 or more"
DEEP = 10  # least depth at which a mean over the layers is judged


def explosion_claims(results: xr.Dataset) -> list[Claim]:
    """Return the claims about the growth that these numbers can judge.

    Args:
        results: as the experiment yang2019/explosion returns it.

    Returns:
        The claims; those about ReLU only if it was measured.
    """
    activations = [str(name) for name in results["activation"].values]
    claims = [
        *(_limits(results) if "relu" in activations else []),
        *_explosions(results, activations),
        *(
            _linear(results) if name == "linear" else _matches_theory(results, name)
            for name in activations
        ),
        _exponential(results),
        _skips(results),
        _layers(results),
    ]
    return mark_beyond(claims, ("derived",))


def judged(text: str, measured: str, decided: bool | None, need: str = SIZE, **more: Any) -> Claim:
    """Return a claim of the article; one that is undecided lacks seeds, or what it needs.

    Args:
        text: the statement as judged.
        measured: the numbers that decide.
        decided: whether it holds; None: undecided.
        need: what the verdict needs besides seeds.
        **more: statement, rule, origin and numbers.
    """
    remedy = f"scale small: {ENOUGH_SEEDS} seeds, {need}; more seeds if these disagree"
    return Claim(
        text, ARTICLE, measured, decided, resolve="" if decided is not None else remedy, **more
    )


def _limits(results: xr.Dataset) -> list[Claim]:
    """Judge the limit of large batches for ReLU, of the squared norm and of the norm itself."""
    largest = int(results["batch_size"].max())
    squared = results["growth"].sel(activation="relu", batch_size=largest)
    is_large = _wide(results) and largest >= 256
    parts = {
        "for ReLU the squared gradient norm grows by pi/(pi-1) = 1.467 per layer as the batch "
        "grows": squared,
        "the norm itself grows by 1.467 per layer (as the article prints; a misprint)": squared
        ** 0.5,
    }
    rule = (
        f"growth per layer at the largest batch (256 or more, width {WIDE} or more) within "
        f"{NEAR:.0%} of 1.467; {DECISION}"
    )
    return [
        judged(
            text,
            f"batch {largest}: {_spread(growth)}",
            decide_below(abs(growth / LIMIT - 1).values, NEAR) if is_large else None,
            statement=TO_LIMIT,
            rule=rule,
            numbers={"growth": growth.values.tolist()},
        )
        for text, growth in parts.items()
    ]


def _explosions(results: xr.Dataset, activations: Sequence[str]) -> list[Claim]:
    """Judge the nonlinear activations, of which the article speaks, apart from the linear one."""
    nonlinear = [name for name in activations if name != "linear"]
    text = "gradients explode, the less the larger the batch"
    parts = {
        f"for every nonlinearity {text}": (nonlinear, "paper"),
        f"without a nonlinearity {text}": (["linear"], "beyond the paper"),
    }
    return [
        _falls(results, names, text, origin)
        for text, (names, origin) in parts.items()
        if set(names) & set(activations)
    ]


def _falls(results: xr.Dataset, activations: Sequence[str], text: str, origin: str) -> Claim:
    """Judge whether gradients explode with some activations, the less the larger the batch."""
    growth = results["growth"].sel(activation=list(activations))
    growth = growth.transpose("activation", "batch_size", "seed")
    means = [
        f"{name} {' '.join(f'{value:.3f}' for value in row.mean('seed').values)}"
        for name, row in zip(activations, growth, strict=True)
    ]
    sizes = results["batch_size"].values.tolist()
    logs = np.log(growth.values)
    rises, below_one = (each.reshape(-1, logs.shape[-1]) for each in (np.diff(logs, axis=1), -logs))
    return judged(
        text,
        f"growth by batch {'/'.join(map(str, sizes))}: {'; '.join(means)}",
        decide_all([decide_below(row) for row in (*rises, *below_one)]) if len(rises) else None,
        statement=EVERY,
        rule="growth per layer above 1 at every batch size, and less at each than at the one "
        f"before; {DECISION}",
        origin=origin,
        numbers={
            f"{name}, batch {size}": values.tolist()
            for name, rows in zip(activations, growth.values, strict=True)
            for size, values in zip(sizes, rows, strict=True)
        },
    )


def _matches_theory(results: xr.Dataset, activation: str) -> Claim:
    """Judge batches above four: below, the inverse variance has no second moment."""
    ratio = (results["growth"] / results["expected_growth"]).sel(activation=activation)
    means = ratio.mean("seed")
    texts = [f"{size}: {float(means.sel(batch_size=size)):.3f}" for size in means.batch_size.values]
    judged = means.where(means["batch_size"] > 4, drop=True)
    return Claim(
        f"{activation}: the growth is the derived factor of the batch size, within 3 % for batches "
        "above 4",
        DERIVED,
        f"measured / expected by batch, {ratio.sizes['seed']} seeds: {', '.join(texts)}",
        bool((abs(judged - 1) < 0.03).all()) if _wide(results) and judged.size else None,
    )


def _linear(results: xr.Dataset) -> Claim:
    """Judged by what is above one: the growth itself nears one whatever the formula."""
    excess = results["growth"].sel(activation="linear").mean("seed") - 1
    expected = 1 / (results["batch_size"] - 3)
    texts = [
        f"{size}: {float(excess.sel(batch_size=size)):.4f} for "
        f"{float(expected.sel(batch_size=size)):.4f}"
        for size in results["batch_size"].values
    ]
    judged = (excess / expected).where(results["batch_size"] > 4, drop=True)
    beyond = judged["batch_size"].values[(abs(judged - 1) >= 0.03).values]
    apart = (excess - expected).sel(batch_size=beyond).values
    listed = ", ".join(f"{size}: {by:+.4f}" for size, by in zip(beyond, apart, strict=True))
    bias = f"; apart, put down to {_finite(results)}, by {listed}"
    return Claim(
        "linear: the growth is (B-2)/(B-3), growth - 1 within 3 % of 1/(B-3) for batches above 4",
        DERIVED,
        f"growth - 1 by batch, {results.sizes['seed']} seeds: {', '.join(texts)}"
        + (bias if len(beyond) else ""),
        not len(beyond) if _wide(results) and judged.size else None,
    )


def _exponential(results: xr.Dataset) -> Claim:
    gain = results["gain_by_depth"].sel(architecture="batch").transpose("depth", "seed")
    depths = results["depth"].values
    rates = gain.values ** (1 / (depths - 1))[:, None]
    parts = (decide_below(np.ptp(rates, 0) / rates.mean(0), STEADY), decide_below(GROWS - rates[0]))
    means = np.exp(np.log(rates).mean(1))
    return judged(
        "the squared gradient of the first layer grows exponentially with the depth",
        "factor per layer at depth "
        + ", ".join(f"{d}: {r:.3f}" for d, r in zip(depths, means, strict=True)),
        decide_all(parts) if len(depths) > 1 else None,
        statement=EXPONENTIAL,
        rule=f"factor per layer above {GROWS:g}, its range over the depths below {STEADY:.0%} of "
        f"the mean; {DECISION}",
        numbers={f"depth {d}": row.tolist() for d, row in zip(depths, rates, strict=True)},
    )


def _skips(results: xr.Dataset) -> Claim:
    deepest = results["gain_by_depth"].isel(depth=-1)
    depth = int(results["depth"][-1])
    plain, skip = (deepest.sel(architecture=name) for name in ("batch", "batch, skip"))
    expected = ""
    if depth == results.attrs["depth"] and "relu" in results["activation"].values:
        theory = results["expected_gradient"].sel(architecture="batch, skip", activation="relu")
        expected = f" (expected {float(theory[0]):.3g})"
    share = np.log(skip.values) / np.log(plain.values)
    return judged(
        "skip connections relieve it",
        f"depth {depth}, first over last layer: plain {_spread(plain)}, with skips "
        f"{_spread(skip)}{expected}",
        decide_below(share, RELIEVED) if float(plain.min()) > 1 else None,
        statement=RELIEF,
        rule="logarithm of the squared gradient, first over last layer, with skips over without, "
        f"below {RELIEVED:g}; {DECISION}",
        numbers={"plain": plain.values.tolist(), "with skips": skip.values.tolist()},
    )


def _layers(results: xr.Dataset) -> Claim:
    depth = int(results["depth"][-1])
    deepest = results["gain_by_depth"].isel(depth=-1).sel(architecture="layer")
    rate = deepest ** (1 / (depth - 1))
    return Claim(
        "layer normalization does not explode with ReLU: the factor per layer is 1",
        DERIVED,
        f"depth {depth}: {_spread(rate)}",
        abs(float(rate.mean()) - 1) < 0.03 if _wide(results) and depth >= DEEP else None,
    )


def _finite(results: xr.Dataset) -> str:
    """Describe how a measured net differs from the theory's."""
    return f"finite width ({results.attrs['width']} units, {INPUTS} input features)"


def _wide(results: xr.Dataset) -> bool:
    return bool(results.attrs["width"] >= WIDE)


def _spread(values: xr.DataArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{float(values.mean()):.4g} ({low:.4g} to {high:.4g}, {values.size} seeds)"


OUTPUTS = 10


@experiment(
    "yang2019/explosion",
    claims=explosion_claims,
    figure=gradient_growth,
    scales={
        "quick": {
            "batch_sizes": (4, 16, 64),
            "widths": (50, 150),
            "depths": (8, 16),
            "depth": 16,
            "width": 150,
        },
        "small": {},
        "paper": {"batch_sizes": (4, 8, 16, 32, 64, 128, 256, 512, 1024), "seeds": 5},
    },
)
def explosion(
    *,
    activations: Sequence[str] = ("relu", "tanh", "linear"),
    batch_sizes: Sequence[int] = (4, 8, 16, 64, 256, 1024),
    widths: Sequence[int] = (100, 300, 1000),
    depths: Sequence[int] = (10, 20, 40),
    batch_size: int = 64,
    width: int = 1000,
    depth: int = 40,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Growth of the squared gradient norm per layer, against batch size, width, depth, activation.

    Fully connected nets at initialization on Gaussian inputs, with batch normalization, with it
    and skip connections, and with layer normalization; the gradient is that of a random
    combination of outputs by each block's output.

    Reference: yang2019.

    Args:
        activations: some of relu, tanh, linear.
        batch_sizes: of the sweep over batch sizes, each above 3.
        widths: of the sweep over widths (relu).
        depths: of the sweep over depths (relu), each above 1.
        batch_size: of the other sweeps, above 3.
        width: of the other sweeps.
        depth: of the other sweeps, above 3: a slope needs layers between the first and the last.
        seeds: networks of each kind.
        seed: first seed; the others follow it.
        store: keeps each network's measurement.
        progress: receives an event before each network.

    Returns:
        ``squared_gradient`` (architecture, activation, seed, layer) with ``expected_gradient``
        (architecture, activation, layer), both over that of the last layer; ``growth``
        (activation, batch_size, seed) per layer of plain batch-normalized nets with
        ``expected_growth`` (activation, batch_size); ``growth_by_width`` (width, seed);
        ``gain_by_depth`` (architecture, depth, seed) from the last layer to the first.
    """
    for name in distinct("activations", activations):
        if name not in ACTIVATIONS:
            raise unknown_name("one of activations", str(name), ACTIVATIONS)
    batch_sizes = integers("batch_sizes", batch_sizes, at_least=4)
    widths = integers("widths", widths, at_least=2)
    depths = integers("depths", depths, at_least=2)
    base = {
        "depth": integer("depth", depth, at_least=4),
        "width": integer("width", width, at_least=2),
        "batch_size": integer("batch_size", batch_size, at_least=4),
    }
    own_seeds = range(seed, seed + integer("seeds", seeds, at_least=1))
    swept: dict[str, list[Any]] = {
        "architecture": list(ARCHITECTURES),
        "activation": list(activations),
        "batch_size": list(batch_sizes),
        "width": list(widths),
        "depth": list(depths),
    }
    measured = _measured(partial(_profiles, store, progress, base, own_seeds), swept)
    expected = _theory(activations, batch_sizes, batch_size, depth)
    coordinates = {**swept, "seed": list(own_seeds), "layer": list(range(1, depth + 1))}
    return xr.Dataset({**measured, **expected}, coordinates, base)


def _measured(
    profiles: Callable[..., Any], swept: dict[str, list[Any]]
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """The variables that are measured, each over its own sweep."""
    names, activations = swept["architecture"], swept["activation"]
    gains = [profiles(architecture=names, depth=[each])[:, 0, :, 0] for each in swept["depth"]]
    by_kind = profiles(architecture=names, activation=activations)
    by_size = profiles(activation=activations, batch_size=swept["batch_size"])
    by_width = profiles(width=swept["width"])
    return {
        "squared_gradient": (("architecture", "activation", "seed", "layer"), by_kind),
        "growth": (("activation", "batch_size", "seed"), growth_per_layer(by_size)),
        "growth_by_width": (("width", "seed"), growth_per_layer(by_width)),
        "gain_by_depth": (("architecture", "depth", "seed"), np.stack(gains, 1)),
    }


def _profiles(
    store: Store,
    progress: ProgressCallback,
    base: dict[str, int],
    seeds: Sequence[int],
    **sweeps: Sequence[Any],
) -> Any:
    """Return squared gradients of the networks of a sweep, relative to their last layers."""
    made = []
    for *choice, seed in itertools.product(*sweeps.values(), seeds):
        parameters: dict[str, Any] = {"architecture": "batch", "activation": "relu", **base}
        parameters |= dict(zip(sweeps, choice, strict=True))
        progress(Progress(", ".join(f"{key} {value}" for key, value in parameters.items())))
        compute = partial(_network, seed=seed, **parameters)
        found = store.compute("yang2019/explosion network", parameters, seed, compute)
        made.append(found["squared_gradient"].values)
    return np.stack(made).reshape(*(len(each) for each in sweeps.values()), len(seeds), -1)


def _theory(
    activations: Sequence[str], batch_sizes: Sequence[int], batch_size: int, depth: int
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return the growth that infinitely wide networks should have."""
    profiles = [
        [_expected(name, activation, batch_size, depth) for activation in activations]
        for name in ARCHITECTURES
    ]
    growth = [[batch_growth(each, size) for size in batch_sizes] for each in activations]
    return {
        "expected_gradient": (("architecture", "activation", "layer"), np.array(profiles)),
        "expected_growth": (("activation", "batch_size"), np.array(growth)),
    }


def growth_per_layer(profiles: Any) -> Any:
    """Return the growth per layer of squared gradients (..., layer) from their logarithm's slope.

    A quarter of the layers at either end is left out: the first have not reached the fixed point of
    the deeper ones, and the last are close to the head.

    >>> float(growth_per_layer(2.0 ** -np.arange(16)).round(6))
    2.0
    """
    ends = max(1, profiles.shape[-1] // 4)
    logarithm = np.log(profiles[..., ends:-ends])
    layers = np.arange(logarithm.shape[-1], dtype=np.float64)
    layers -= layers.mean()
    return np.exp(-(logarithm @ layers) / (layers @ layers))


def _network(
    architecture: str, activation: str, depth: int, width: int, batch_size: int, seed: int
) -> xr.Dataset:
    """Return the squared gradients of one network, relative to its last layer."""
    network = Stack(
        architecture, INPUTS, OUTPUTS, depth=depth, width=width, activation=activation, seed=seed
    )
    found = squared_gradients(network, gaussian_inputs((INPUTS,), batch_size, seed), seed)
    return xr.Dataset({"squared_gradient": ("layer", found / found[-1])})


def _expected(architecture: str, activation: str, batch_size: int, depth: int) -> Any:
    """Return the same by theory: the product of the factors of all blocks above."""
    norm, residual = ARCHITECTURES[architecture]
    if residual:
        factors = residual_growth(norm, activation, batch_size, depth)
    else:
        batch = norm == "batch"
        one = batch_growth(activation, batch_size) if batch else layer_growth(activation)
        factors = np.full(depth, one)
    return np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)
