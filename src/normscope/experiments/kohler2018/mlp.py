"""Networks with a hidden layer: the article's claims, as printed and as they hold."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.optimize import minimize

from normscope.decoupled import HiddenUnits, Options, SignedDesign, margin_loss, train_units
from normscope.experiments.kohler2018.problems import (
    EVERY_PROBLEM,
    Moments,
    largest_by_seed,
    moments,
)
from normscope.experiments.recipe import experiment, side_by_side
from normscope.plots.convergence import units_figure
from normscope.progress import Progress, ProgressCallback
from normscope.results import Claim, Store
from normscope.results.claim import mark_beyond

ARTICLE = "article on batch normalization (kohler2018), multilayer perceptrons"
ROUNDING = 1e-26  # of a squared gradient


def mlp_claims(results: xr.Dataset) -> list[Claim]:
    """The article's statements on hidden units, as printed and as they hold.

    Args:
        results: as the experiment returns them.

    Returns:
        The claims.
    """
    claims = [_bound(results), _ends_on_line(results), _printed(results), _singular(results)]
    return mark_beyond(claims, ("errata",))


def _bound(results: xr.Dataset) -> Claim:
    left = results["gradient"]
    share = left / results["bound"]
    # below rounding there is nothing to compare; a nan is not below it and makes the claim fail
    worst = float(share.where(~(left <= ROUNDING), 0.0).max(skipna=False))
    fall = float((left.isel(step=-1) / left.isel(step=0)).max(skipna=False))
    return Claim(
        "each unit, from zero: |grad f|^2 in the norm of S^-1 <= (1 - mu/L)^(2t) C gap_0 plus the "
        "square of the bisection's bound",
        f"{ARTICLE}; errata",
        f"largest left / right {worst:.2g} over {results.sizes['unit']} units, "
        f"{results.sizes['step']} points, {results.sizes['seed']} seeds; the gradient falls to "
        f"{fall:.1e} of its start or less",
        worst <= 1 and fall < 1e-2,
    )


def _ends_on_line(results: xr.Dataset) -> Claim:
    off = results["off_line_from_zero"]
    return Claim(
        "unit by unit from zero, every unit ends on the line of S^-1 u",
        f"{ARTICLE}; errata",
        f"largest 1 - cos {float(off.max()):.1e} over {off.size} units",
        float(off.max(skipna=False)) < 1e-4,
    )


def _printed(results: xr.Dataset) -> Claim:
    off = results["off_line_joint"].max("unit")
    gain = (results["value_line"] - results["value_joint"]).min()
    return Claim(
        "the critical points of each hidden unit align along one line",
        ARTICLE,
        f"the best joint minimum has units off the line, largest 1 - cos {float(off.min()):.3g} to "
        f"{float(off.max()):.3g} by seed, with a gradient of "
        f"{float(results['stationary'].max()):.0e}, and is lower than any point of the line, by "
        f"{float(gain):.1e} or more",
        bool((off < 1e-4).all()),
        statement="The critical points of each hidden unit all align along one line, which "
        "depends on the information that comes into the hidden layer.",
        rule="1 - cos of the angle to the line below 1e-4 for every unit at the best joint "
        f"minimum; {EVERY_PROBLEM}",
        numbers=largest_by_seed(results["off_line_joint"]),
    )


def _singular(results: xr.Dataset) -> Claim:
    off = results["off_line_joint"].max("unit") > 1e-4
    singular = results["singular"] < 1e-5
    return Claim(
        "a joint critical point lies off the line only where the matrix of mean second derivatives "
        "by the units' margins is singular",
        "errata of kohler2018: from Stein's identity",
        f"least over largest eigenvalue there {float(results['singular'].max()):.0e} or less",
        bool((singular | ~off).all()),
    )


Array = NDArray[np.float64]


@experiment(
    "kohler2018/mlp",
    claims=mlp_claims,
    figure=units_figure,
    scales={"quick": {"nodes": 40}, "small": {}, "paper": {"dimensions": 3, "nodes": 40}},
)
def mlp(
    *,
    dimensions: int = 2,
    units: int = 3,
    nodes: int = 80,
    condition: float = 5.0,
    quotient: float = 0.4,
    steps: int = 40,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """GDNP over hidden units from zero, and the joint minimum, for Gaussian z by quadrature.

    Reference: kohler2018, after the encyclopaedia article on batch normalization.

    Args:
        dimensions: of the inputs; the quadrature has ``nodes`` to this power.
        units: hidden ones, with outgoing weights of one.
        nodes: of the Gauss-Hermite rule in each dimension.
        condition: of S.
        quotient: u'S^{-1}u.
        steps: of each unit's direction.
        seeds: problems.
        seed: first seed; the others follow it.
        store: not used; a run takes seconds.
        progress: receives an event before each problem.

    Returns:
        ``gradient`` and ``bound`` (seed, unit, step); ``off_line_from_zero`` and
        ``off_line_joint``, 1 - cos to the line of S^{-1}u (seed, unit); the least values on the
        line and anywhere, ``value_line`` and ``value_joint`` (seed); ``singular`` (seed), the least
        eigenvalue of the coupling matrix at the joint minimum over its largest, in magnitude; and
        ``stationary`` (seed), the norm of the joint gradient there.
    """
    del store
    found = {}
    for own in range(seed, seed + seeds):
        progress(Progress(f"seed {own}"))
        random = np.random.default_rng(own)
        given = moments(dimensions, condition, quotient, random)
        design = given.quadrature(nodes)
        zero = _from_zero(given, design, units, steps)
        found[own] = xr.merge([zero, _jointly(given, design, units, random)])
    joined = side_by_side("seed", found)
    return joined.assign_coords(unit=np.arange(units), step=np.arange(steps + 1))


def _from_zero(given: Moments, design: SignedDesign, units: int, steps: int) -> xr.Dataset:
    """Train unit by unit from zero."""
    net = HiddenUnits(
        design, margin_loss("logistic"), np.zeros((units, design.size)), np.ones(units)
    )
    starts = np.tile(-design.mean, (units, 1))
    paths = train_units(
        net, starts, Options(), unit_steps=steps, max_sweeps=1, tol=0.0, refit=False
    ).first
    return xr.Dataset(
        {
            "gradient": (("unit", "step"), [path.gradient for path in paths]),
            "bound": (("unit", "step"), [path.bound for path in paths]),
            "off_line_from_zero": ("unit", off_line(net.weights, given)),
        }
    )


def _jointly(
    given: Moments, design: SignedDesign, units: int, random: np.random.Generator
) -> xr.Dataset:
    """Return the best of four joint minima over all units."""
    drawn = [random.standard_normal((units, design.size)) for _ in range(4)]
    found = [joint_minimum(design, start) for start in drawn]
    weights, value, gradient = min(found, key=lambda each: each[1])
    # along the line the problem is one of a single input, x'S^{-1}u
    line = given.line[:, None]
    along = SignedDesign(design.inputs @ line, design.signs, False, design.weights)
    on_line = min(joint_minimum(along, start @ given.second @ line)[1] for start in drawn)
    spectrum = np.abs(np.linalg.eigvalsh(coupling(design, weights)))
    return xr.Dataset(
        {
            "off_line_joint": ("unit", np.sort(off_line(weights, given))),
            "value_joint": value,
            "value_line": on_line,
            "singular": float(spectrum.min() / spectrum.max()),
            "stationary": gradient,
        }
    )


def off_line(weights: Array, given: Moments) -> Array:
    """1 - cos of each unit to the line of S^{-1}u, in the product of S, without cancellation."""
    lengths = np.sqrt(np.einsum("ui,ij,uj->u", weights, given.second, weights))
    unit = weights / lengths[:, None]
    beside = unit - np.outer(unit @ given.second @ given.line, given.line)
    sine = np.einsum("ui,ij,uj->u", beside, given.second, beside)
    return np.asarray(sine / (1 + np.sqrt(np.maximum(1 - sine, 0))))


def joint_minimum(design: SignedDesign, start: Array) -> tuple[Array, float, float]:
    """Minimize over all units together by BFGS, with outgoing weights of one.

    Args:
        design: the samples.
        start: weights (units, size).

    Returns:
        The weights, the value, and the norm of the gradient.
    """
    loss, z = margin_loss("logistic"), -design.signs[:, None] * design.inputs

    def evaluate(flat: Array) -> tuple[float, Array]:
        activations = np.tanh(z @ flat.reshape(start.shape).T)
        whole = activations.sum(axis=1)
        slopes = (design.weights * loss.slope(whole))[:, None] * (1 - activations**2)
        return float(design.weights @ loss.value(whole)), (slopes.T @ z).ravel()

    options = {"gtol": 1e-10, "maxiter": 5000}
    found = minimize(evaluate, start.ravel(), jac=True, method="BFGS", options=options)
    return found.x.reshape(start.shape), float(found.fun), float(np.linalg.norm(found.jac))


def coupling(design: SignedDesign, weights: Array) -> Array:
    r"""The matrix B of mean second derivatives by the units' margins, outgoing weights one.

    At a joint critical point for Gaussian z, S W B = -u a': the units W lie on the line of S^{-1}u
    if B is invertible.

    Args:
        design: the samples.
        weights: (units, size).

    Returns:
        B (units, units).
    """
    loss = margin_loss("logistic")
    activations = np.tanh(-design.signs[:, None] * (design.inputs @ weights.T))
    whole, steepness = activations.sum(axis=1), 1 - activations**2
    curvature = (design.weights * loss.curvature(whole))[:, None]
    own = (design.weights * loss.slope(whole)) @ (-2 * activations * steepness)
    return np.asarray((curvature * steepness).T @ steepness + np.diag(own))
