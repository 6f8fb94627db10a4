"""Halfspaces: the inequalities of GDNP in their corrected forms, and the claims about them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.optimize import minimize

from normscope.decoupled import (
    GaussianObjective,
    Objective,
    Options,
    SampleObjective,
    SignedDesign,
    gdnp,
    inequalities,
    margin_loss,
)
from normscope.experiments.kohler2018.problems import (
    EVERY_PROBLEM,
    Moments,
    largest_by_seed,
    moments,
)
from normscope.experiments.recipe import experiment, side_by_side
from normscope.plots.convergence import halfspace_figure
from normscope.progress import Progress, ProgressCallback
from normscope.results import Claim, Store
from normscope.results.claim import mark_beyond

ARTICLE = "article on batch normalization (kohler2018), learning halfspaces; errata"
ROUNDING = 1e-26  # of a squared gradient


def halfspace_claims(results: xr.Dataset) -> list[Claim]:
    """The article's statements on halfspaces, as corrected.

    Args:
        results: as the experiment returns them.

    Returns:
        The claims.
    """
    parts = {
        "direction": "direction: |w|_S^2 |grad_w f|^2 <= (1 - mu/L)^(2t) Phi^2 gamma^2 gap_0",
        "length": "length: (df/dgamma)^2 <= (2^-T zeta |b - a| / mu)^2 after T bisections",
        "whole": "both: |grad f|^2 in the norm of S^-1 is within the sum of the two bounds",
    }
    claims = [_inequality(results, part, text) for part, text in parts.items()]
    claims += [_minimum(results), _printed(results), _line(results), _identity(results)]
    return mark_beyond(claims, ("errata",))


def _inequality(results: xr.Dataset, part: str, text: str) -> Claim:
    left, right = results[f"{part}_left"], results[f"{part}_right"]
    share = (left / right).where(left > ROUNDING)
    counts = share.notnull().sum(("seed", "step"))
    used = [str(loss) for loss in counts["loss"].values if int(counts.sel(loss=loss)) > 0]
    worst = float(share.max())
    # the direction's right side is always defined, the others' not at the longest length
    needed = left + right if part == "direction" else left
    known = not bool(needed.isnull().any())
    return Claim(
        text,
        ARTICLE,
        f"largest left / right {worst:.3g} over {int(counts.sum())} points of "
        f"{results.sizes['seed']} seeds, loss {' and '.join(used) or 'none'}"
        f"{_left_out(left, right)}",
        known and worst <= 1,
    )


def _left_out(left: xr.DataArray, right: xr.DataArray) -> str:
    """Return which points were not compared, and why; empty if all were."""
    parts = []
    for loss in left["loss"].values:
        own, bound = left.sel(loss=loss), right.sel(loss=loss)
        reasons = {
            "not a number on the left": int(own.isnull().sum()),
            "at the longest length, where there is no right side": int(bound.isnull().sum()),
            "below rounding": int((own <= ROUNDING).where(bound.notnull(), False).sum()),
        }
        parts += [f"{count} of {loss} ({why})" for why, count in reasons.items() if count]
    return f"; left out: {', '.join(parts)}" if parts else ""


def _minimum(results: xr.Dataset) -> Claim:
    excess = results["excess"].sel(form="exact")
    return Claim(
        "GDNP reaches the minimum of L-BFGS on Gaussian samples, at any scale of the inputs",
        ARTICLE,
        f"largest difference {float(abs(excess).max()):.1e} over scales "
        f"{', '.join(f'{float(s):g}' for s in results['scale'])}",
        bool((abs(excess) < 1e-8).all()),
    )


def _printed(results: xr.Dataset) -> Claim:
    excess = results["excess"].sel(form="printed").max("seed")
    pairs = zip(results["scale"].values, excess.values, strict=True)
    return Claim(
        "the same with h as printed, (u'w)^2 in its last term",
        "article on batch normalization (kohler2018), stopping criterion of GDNP",
        "worst difference by scale: " + ", ".join(f"{s:g}: {_shown(e)}" for s, e in pairs),
        bool((excess < 1e-8).all()),
        statement="GDNP with the printed stopping criterion h converges to the minimum.",
        rule="loss at most 1e-8 above the minimum of L-BFGS in every problem, at every scale of "
        f"the inputs; {EVERY_PROBLEM}",
        numbers=largest_by_seed(results["excess"].sel(form="printed")),
    )


def _shown(excess: float) -> str:
    return "diverged" if excess > 1e299 else f"{excess:.1e}"


def _line(results: xr.Dataset) -> Claim:
    worst = float(results["off_line"].max(skipna=False))
    return Claim(
        "for Gaussian z all critical points lie on the line of S^-1 u",
        ARTICLE.removesuffix("; errata"),
        f"largest 1 - cos {worst:.1e} of {results['off_line'].size} points found by BFGS from "
        "random starts",
        worst < 1e-10,
        statement="For Gaussian inputs all critical points lie on the same line, for any loss.",
        rule=f"1 - cos of the angle to the line below 1e-10; {EVERY_PROBLEM}",
        numbers=largest_by_seed(results["off_line"]),
    )


def _identity(results: xr.Dataset) -> Claim:
    worst = float(results["identity"].max(skipna=False))
    return Claim(
        "decoupling: f_BN(w, gamma) = E phi(x'w_tilde), w_tilde = gamma w / |w|_S, for E[x] = 0",
        "article on batch normalization (kohler2018), decoupling",
        f"largest relative difference {worst:.1e} over 20 random (w, gamma), "
        f"{', '.join(str(a) for a in results['activation'].values)}, {results.sizes['seed']} seeds",
        worst < 1e-12,
        statement="Batch normalization decouples the length and the direction of the weights.",
        rule=f"relative difference of both sides below 1e-12; {EVERY_PROBLEM}",
        numbers=largest_by_seed(results["identity"]),
    )


Array = NDArray[np.float64]

LOSSES = ("logistic", "sigmoid")
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "square": np.square,
}
FORMS = ("exact", "printed")
BISECTIONS = 20  # few enough for the second inequality to be seen


@experiment(
    "kohler2018/halfspace",
    claims=halfspace_claims,
    figure=halfspace_figure,
    scales={
        "quick": {"dimensions": 8, "samples": 500, "steps": 60},
        "small": {},
        "paper": {"samples": 10_000, "seeds": 5},
    },
)
def halfspace(
    *,
    dimensions: int = 37,
    condition: float = 20.0,
    quotient: float = 0.3,
    samples: int = 4000,
    scales: Sequence[float] = (1e-3, 1.0, 1e3),
    steps: int = 200,
    most_steps: int = 2000,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """GDNP on Gaussian halfspaces: inequalities, minimum, critical points, decoupling identity.

    Reference: kohler2018, after the encyclopaedia article on batch normalization.

    Args:
        dimensions: of the inputs.
        condition: of S.
        quotient: u'S^{-1}u, how far the classes are apart; below one.
        samples: where averages over samples are minimized.
        scales: of the inputs, for the minimum.
        steps: of the path along which the inequalities are followed.
        most_steps: on the way to the minimum.
        seeds: problems.
        seed: first seed; the others follow it.
        store: not used; a run takes seconds.
        progress: receives an event before each problem.

    Returns:
        Both sides of the three inequalities (seed, loss, step); ``excess`` over the minimum of
        L-BFGS by form of h and scale (seed, form, scale); ``off_line`` of critical points found by
        BFGS (seed, start); ``identity`` errors (seed, activation).
    """
    del store
    found = {}
    for own in range(seed, seed + seeds):
        progress(Progress(f"seed {own}"))
        random = np.random.default_rng(own)
        given = moments(dimensions, condition, quotient, random)
        sides = {loss: _sides(given, loss, steps) for loss in LOSSES}
        sampled = given.sampled(samples, random)
        excess = [[_excess(sampled, s, form, most_steps) for s in scales] for form in FORMS]
        found[own] = side_by_side("loss", sides).assign(
            excess=(("form", "scale"), excess),
            off_line=("start", _critical_points(given, random)),
            identity=("activation", _identity_errors(sampled, random)),
        )
    names = {"form": list(FORMS), "scale": list(scales), "activation": list(ACTIVATIONS)}
    results = side_by_side("seed", found).assign_coords(names)
    return results.assign_coords({name: range(results.sizes[name]) for name in ("step", "start")})


def _sides(given: Moments, loss: str, steps: int) -> xr.Dataset:
    """Return both sides of the inequalities for Gaussian z with these moments."""
    design = given.matched()
    objective = GaussianObjective(design, margin_loss(loss))
    # a fixed number of halvings and no safeguard: the algorithm of the analysis
    options = Options(BISECTIONS, safeguard=False)
    path = list(itertools.islice(gdnp(objective, -design.mean, options), steps))
    sides = asdict(inequalities(objective, design, path))
    return xr.Dataset({name: ("step", values) for name, values in sides.items()})


def _scaled(design: SignedDesign, scale: float) -> SampleObjective:
    inputs = SignedDesign(design.inputs * scale, design.signs, constant=False)
    return SampleObjective(inputs, margin_loss("logistic"))


def _excess(design: SignedDesign, scale: float, form: str, most_steps: int) -> float:
    """Return GDNP's last value minus that of L-BFGS; 1e300 where it diverged."""
    objective = _scaled(design, scale)
    options = Options(form=form, safeguard=form == "exact", length_tolerance=1e-10)
    value = np.inf
    with np.errstate(all="ignore"):
        for point in gdnp(objective, -objective.mean, options):
            value = point.value
            if point.residual < 1e-9 or point.step >= most_steps or not np.isfinite(value):
                break
    return value - best_by_lbfgs(_scaled(design, 1.0)) if np.isfinite(value) else 1e300


def best_by_lbfgs(objective: Objective) -> float:
    """Return the smallest value that L-BFGS finds for the same objective.

    Args:
        objective: over samples or a Gaussian.

    Returns:
        The value.
    """
    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 0.0, "gtol": 1e-10}
    start = -objective.mean
    found = minimize(
        _value_and_gradient(objective), start, jac=True, method="L-BFGS-B", options=options
    )
    return float(found.fun)


def _value_and_gradient(objective: Objective) -> Callable[[Array], tuple[float, Array]]:
    def evaluate(w: Array) -> tuple[float, Array]:
        direction = objective.direction(w)
        length = float(np.linalg.norm(w) / np.linalg.norm(direction.w))
        return objective.value(direction, length), objective.gradient(direction, length)

    return evaluate


def _critical_points(given: Moments, random: np.random.Generator) -> list[float]:
    """1 - cos to the line of S^{-1}u of critical points found by BFGS from three random starts."""
    objective = GaussianObjective(given.matched(), margin_loss("logistic"))
    off = []
    for _ in range(3):
        start = random.standard_normal(len(given.mean))
        options = {"gtol": 1e-10, "maxiter": 5000}
        w = minimize(
            _value_and_gradient(objective), start, jac=True, method="BFGS", options=options
        ).x
        unit = objective.direction(w).w
        beside = unit - float(unit @ given.second @ given.line) * given.line
        off.append(float(beside @ given.second @ beside) / 2)  # 1 - cos without cancellation
    return off


def _identity_errors(design: SignedDesign, random: np.random.Generator) -> list[float]:
    """Return the largest relative difference of both sides of the decoupling identity.

    The unit is computed as batch normalization is written: minus mean, over standard deviation.
    """
    centred = design.inputs - design.inputs.mean(axis=0)
    second = centred.T @ centred / len(centred)
    errors = np.zeros(len(ACTIVATIONS))
    for _ in range(20):
        w, gamma = random.standard_normal(centred.shape[1]), random.standard_normal()
        projected = centred @ w
        normalized = gamma * (projected - projected.mean()) / projected.std()
        weights = gamma * w / np.sqrt(w @ second @ w)
        for k, activation in enumerate(ACTIVATIONS.values()):
            left, right = activation(normalized).mean(), activation(centred @ weights).mean()
            errors[k] = max(errors[k], abs(left - right) / np.abs(activation(normalized)).mean())
    return [float(error) for error in errors]
