"""What is said of gradient explosion, judged by the measured growth."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from normscope.results import Claim

__all__ = ["REFERENCE", "explosion_claims"]

LIMIT = math.pi / (math.pi - 1)
# measured once before, with other seeds and code, at width 1000 and depth 40 (ReLU)
REFERENCE = {4: 3.00, 8: 1.79, 16: 1.59, 64: 1.49, 256: 1.466, 1024: 1.458}
PAPER, ARTICLE = "yang2019", "yang2019, in the encyclopaedia article"
DERIVED = "yang2019, derived for every batch in normscope.experiments.yang2019.growth"
INPUTS = 1000  # features of the Gaussian inputs: with few, the batch's samples are alike
WIDE = 500  # below it the theory of infinite width is not put to the test
DEEP = 10  # below it ends make too much of a mean over the layers
SPREADS = 3  # standard deviations over the seeds that the table may be away


def explosion_claims(results: xr.Dataset) -> list[Claim]:
    """Every claim about the growth that these numbers say something of.

    Args:
        results: as the experiment yang2019/explosion returns it.

    Returns:
        The claims; those about ReLU only if it was measured.
    """
    activations = [str(name) for name in results["activation"].values]
    of_relu = [_limit(results), _norm(results)] if "relu" in activations else []
    return [
        *of_relu,
        _falls(results),
        *(_linear(results) if name == "linear" else _theory(results, name) for name in activations),
        *(_reference(results) if "relu" in activations else []),
        _exponential(results),
        _skips(results),
        _layers(results),
    ]


def _limit(results: xr.Dataset) -> Claim:
    largest = int(results["batch_size"].max())
    growth = results["growth"].sel(activation="relu", batch_size=largest)
    near = abs(float(growth.mean()) / LIMIT - 1) < 0.02
    return Claim(
        "for ReLU the squared gradient norm grows by pi/(pi-1) = 1.467 per layer as the batch "
        "grows",
        PAPER,
        f"batch {largest}: {_spread(growth)}",
        near if _wide(results) and largest >= 256 else None,
    )


def _norm(results: xr.Dataset) -> Claim:
    largest = int(results["batch_size"].max())
    growth = results["growth"].sel(activation="relu", batch_size=largest) ** 0.5
    return Claim(
        "the norm itself grows by 1.467 per layer (a misprint: it is the squared norm)",
        ARTICLE,
        f"growth of the norm at batch {largest}: {_spread(growth)}",
        abs(float(growth.mean()) / LIMIT - 1) < 0.02 if largest >= 64 else None,
    )


def _falls(results: xr.Dataset) -> Claim:
    means = results["growth"].mean("seed")
    falls = bool((means.diff("batch_size") < 0).all())
    texts = [
        f"{name} {' '.join(f'{value:.3f}' for value in means.sel(activation=name).values)}"
        for name in results["activation"].values
    ]
    sizes = "/".join(str(size) for size in results["batch_size"].values)
    return Claim(
        "for every nonlinearity gradients explode, the less the larger the batch",
        ARTICLE,
        f"batch {sizes}: {'; '.join(texts)}",
        falls and bool((means > 1).all()) if means.sizes["batch_size"] > 1 else None,
    )


def _theory(results: xr.Dataset, activation: str) -> Claim:
    """Batches of four are shown but not judged: their inverse variance has no second moment."""
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


def _reference(results: xr.Dataset) -> list[Claim]:
    """The table of earlier measurements; nothing where none of its batches was measured."""
    sizes = [int(size) for size in results["batch_size"].values if int(size) in REFERENCE]
    seeds = results.sizes["seed"]
    if not sizes or seeds < 2:
        return []
    growth = results["growth"].sel(activation="relu", batch_size=sizes)
    means, spread = growth.mean("seed").values, growth.std("seed", ddof=1).values
    expected = np.array([REFERENCE[size] for size in sizes])
    theory = results["expected_growth"].sel(activation="relu", batch_size=sizes).values
    texts = [f"{size}: {m:.3f} ± {s:.4f}" for size, m, s in zip(sizes, means, spread, strict=True)]
    beyond = abs(means - expected) > SPREADS * spread
    below = 100 * (1 - np.stack([expected, means])[:, beyond] / theory[beyond])
    off = [
        f"{size}: table {table:.1f} %, measured {ours:.1f} %"
        for size, table, ours in zip(np.array(sizes)[beyond], *below, strict=True)
    ]
    bias = (
        f"; beyond it, put down to {_finite(results)}, below the derived factor by "
        f"({'; '.join(off)})"
    )
    asked = results.attrs["width"] == 1000 and results.attrs["depth"] == 40
    listed = ", ".join(f"{size}: {REFERENCE[size]:g}" for size in sizes)
    return [
        Claim(
            f"ReLU, width 1000, depth 40, growth by batch {listed}: the mean within {SPREADS} "
            "standard deviations over the seeds",
            "yang2019, measured once before",
            ", ".join(texts) + (bias if off else ""),
            not off if asked and seeds >= 3 else None,
        )
    ]


def _exponential(results: xr.Dataset) -> Claim:
    gain = results["gain_by_depth"].sel(architecture="batch").transpose("depth", "seed")
    depths = results["depth"].values
    rates = np.exp(np.log(gain.values).mean(1) / (depths - 1))
    steady = bool(np.ptp(rates) < 0.1 * rates.mean() and rates.min() > 1.2)
    return Claim(
        "the squared gradient of the first layer grows exponentially with the depth",
        ARTICLE,
        "factor per layer at depth "
        + ", ".join(f"{d}: {r:.3f}" for d, r in zip(depths, rates, strict=True)),
        steady if len(depths) > 1 else None,
    )


def _skips(results: xr.Dataset) -> Claim:
    deepest = results["gain_by_depth"].isel(depth=-1)
    depth = int(results["depth"][-1])
    plain, skip = (deepest.sel(architecture=name) for name in ("batch", "batch, skip"))
    expected = ""
    if depth == results.attrs["depth"] and "relu" in results["activation"].values:
        theory = results["expected_gradient"].sel(architecture="batch, skip", activation="relu")
        expected = f" (expected {float(theory[0]):.3g})"
    return Claim(
        "skip connections relieve it",
        ARTICLE,
        f"depth {depth}, first over last layer: plain {_spread(plain)}, with skips "
        f"{_spread(skip)}{expected}",
        bool(float(skip.max()) < 0.01 * float(plain.min()))
        if float(plain.min()) > 1e4
        else bool(float(skip.max()) < float(plain.min())),
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
    """What sets a measured net apart from the theory's."""
    return f"finite width ({results.attrs['width']} units, {INPUTS} input features)"


def _wide(results: xr.Dataset) -> bool:
    return bool(results.attrs["width"] >= WIDE)


def _spread(values: xr.DataArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{float(values.mean()):.4g} ({low:.4g} to {high:.4g}, {values.size} seeds)"
