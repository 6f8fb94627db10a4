"""Sentences of a report: claims, records, phase diagrams, and what a scope measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.plots.edge_of_stability import stability_headline
from normscope.plots.names import quantity_name
from normscope.report.diagrams import RATE, grid_bracket, has_result, setting_axis
from normscope.report.document import Card
from normscope.results import VERDICTS, Claim
from normscope.results.record import training_settings
from normscope.text import join_words, plural

_FACTOR = "divergence_factor"
_AGREES = "agrees within the grid"
_CLOSURES = {
    "train": "train follows the batch's statistics, as training does",
    "frozen": "frozen holds them fixed",
    "printed": "printed is the paper's formula",
}
_UNKNOWN = "not recorded"
_PACKAGES = ("torch", "numpy", "python")
_DESCRIBED = ("effective_smoothness", "top_eigenvalue")  # of a scope, besides the losses


def format_seconds(seconds: float) -> str:
    """Format a duration: whole seconds, or two digits if it is short.

    >>> [format_seconds(each) for each in (0.03306, 1.492, 25.96, 5200.4)]
    ['0.033', '1.5', '26', '5200']
    """
    return f"{seconds:.2g}" if not 10 <= seconds < 1e7 else f"{seconds:.0f}"


def claims_sentence(claims: Sequence[Claim]) -> str:
    """Count the claims by verdict.

    >>> claims_sentence([Claim("2 < 3", "arithmetic", "1 apart", True)])
    'Of 1 claim, 1 is reproduced.'
    """
    verdicts = [claim.verdict for claim in claims]
    parts = [
        f"{verdicts.count(verdict)} {'is' if verdicts.count(verdict) == 1 else 'are'} {verdict}"
        for verdict in VERDICTS
        if verdict in verdicts
    ]
    return f"Of {plural(len(claims), 'claim')}, {join_words(parts)}."


def states_sentence(counts: Mapping[str, int]) -> str:
    """Count records by state.

    >>> states_sentence({"finished": 3, "diverged": 1, "failed": 0})
    '4 records: 3 finished and 1 diverged'
    """
    parts = [f"{number} {state}" for state, number in counts.items() if number]
    return f"{plural(sum(counts.values()), 'record')}: {join_words(parts)}"


def package_versions(recorded: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the versions of each package that the records of a store ran on.

    >>> package_versions([{"torch": "2.1", "python": "3.11"}, {"torch": "2.2", "python": "3.11"}])
    {'torch': '2.1, 2.2', 'numpy': 'not recorded', 'python': '3.11'}

    Args:
        recorded: sets of versions; empty for records without versions.
    """
    found = list(recorded)
    if not any(found):
        return {", ".join(_PACKAGES): f"{_UNKNOWN} by the normscope that wrote the store"}
    versions = {}
    for name in _PACKAGES:
        each = dict.fromkeys(kept.get(name, _UNKNOWN) for kept in found)
        versions[name] = ", ".join(sorted(each, key=lambda value: value == _UNKNOWN))
    return versions


def divergence_sentence(factor: float) -> str:
    """Return the divergence criterion of a sweep, which is not that of `max_learning_rate`.

    Args:
        factor: multiple of its first value beyond which a loss ends a training run.

    >>> divergence_sentence(1000.0)
    'Diverged: a loss that is not finite, or beyond 1000 times its first value.'
    """
    return f"Diverged: a loss that is not finite, or beyond {factor:g} times its first value."


def common_factor(settings: Iterable[dict[str, Any]]) -> float | None:
    """Return the divergence factor of training runs; None if it differs or is unknown.

    >>> common_factor([{"divergence_factor": 10.0}, {"divergence_factor": 10.0}]), common_factor([])
    (10.0, None)
    """
    found = {each.get(_FACTOR) for each in settings}
    factor = found.pop() if len(found) == 1 else None
    return float(factor) if isinstance(factor, int | float) else None


def factor_of(diagrams: Iterable[xr.Dataset]) -> float | None:
    """Return the divergence factor of phase diagrams; None if it differs or is unknown."""
    return common_factor(map(training_settings, diagrams))


def diagram_findings(diagram: xr.Dataset) -> str:
    """Describe a phase diagram and its stability boundary.

    Args:
        diagram: with the theory's critical learning rates, if there are any.
    """
    if not bool(has_result(diagram).any()):
        return describe_diagram(diagram)
    return f"{describe_diagram(diagram)} {describe_boundary(diagram)}"


def describe_diagram(diagram: xr.Dataset) -> str:
    """Describe a phase diagram: cells, divergences, lowest loss.

    Args:
        diagram: ``test_loss`` and ``diverged`` over a setting, the learning rate and the seed;
            NaN where there is no result.
    """
    axis = setting_axis(diagram)
    done, diverged = has_result(diagram), (diagram["diverged"] == 1).any("seed")
    missing = int((~done.any("seed")).sum())
    cells = f"Of {plural(diverged.size, 'cell')}"
    over = f" over {_range(diagram, axis)} and {_range(diagram, RATE)}"
    holes = [f"{missing} {'has' if missing == 1 else 'have'} no result yet"] if missing else []
    if missing == diverged.size:
        return f"{cells}{over}, {holes[0]}."
    limit = "" if bool((done.any("seed") == done.all("seed")).all()) else "up to "
    seeds = diagram.sizes["seed"]
    count = f"{int(diverged.sum())} diverged{' in at least one seed' if seeds > 1 else ''}"
    words = f"{cells} x {limit}{plural(seeds, 'seed')}{over}, {join_words([*holes, count])}"
    loss = diagram["test_loss"].mean("seed").where(~diverged)
    if not bool(loss.notnull().any()):
        return f"{words}."
    best = loss.stack(cell=(axis, RATE))
    best = best.isel(cell=int(best.argmin("cell")))
    where = f"{axis} {float(best[axis]):.3g} and learning rate {float(best[RATE]):.3g}"
    return f"{words}; the lowest mean test loss, {float(best):.3g}, is at {where}."


def _range(diagram: xr.Dataset, name: str) -> str:
    values = np.asarray(diagram[name].values)
    return f"{name.replace('_', ' ')} {values.min():.3g} to {values.max():.3g}"


def describe_theory(diagram: xr.Dataset) -> str:
    """Explain the theory's lines of a phase diagram; "" if none is drawn.

    Args:
        diagram: with ``critical_learning_rate`` over the closures.
    """
    lines = diagram["critical_learning_rate"].dropna("closure", how="all")  # the drawn ones
    if not lines.size:
        return ""
    closures = map(str, lines["closure"].values)
    known = [_CLOSURES[each] for each in closures if each in _CLOSURES]
    explained = f": {'; '.join(known)}" if known else ""
    return f"Red: the theory's critical learning rate{explained}. Thin: half of it."


def describe_boundary(diagram: xr.Dataset) -> str:
    """Describe between which learning rates training diverges, at both ends of the setting.

    Args:
        diagram: ``test_loss`` and ``diverged`` over a setting, the learning rate and the seed, and
            ``critical_learning_rate`` if the theory has any.
    """
    bracket = grid_bracket(diagram)
    (axis,) = map(str, bracket.dims)
    known = bracket.dropna(axis)
    line = _train_line(diagram)
    if not known.sizes[axis]:
        words = "The learning rates hold no boundary between trainings that held and diverged."
        return words + _no_answer(line, bool(line is not None and line.notnull().any()))
    ends = dict.fromkeys([float(known[axis].min()), float(known[axis].max())])
    brackets = {
        end: (float(known["low"].sel({axis: end})), float(known["high"].sel({axis: end})))
        for end in ends
    }
    ranges = [
        f"between {low:.3g} and {high:.3g} at {axis} {end:.3g}"
        for end, (low, high) in brackets.items()
    ]
    words = f"Training begins to diverge at a learning rate {' and '.join(ranges)}"
    theory = {} if line is None else {end: float(line.sel({axis: end})) for end in ends}
    theory = {end: rate for end, rate in theory.items() if not np.isnan(rate)}
    return f"{words}{_compare_theory(theory, brackets, axis)}.{_no_answer(line, bool(theory))}"


def _compare_theory(
    theory: dict[float, float], brackets: dict[float, tuple[float, float]], axis: str
) -> str:
    """Return the theory's rates and how they compare with the measured ones, "" if it has none.

    >>> _compare_theory({1.0: 2.39}, {1.0: (0.398, 2.51)}, "gamma")
    '; the theory (train) predicts 2.39, which agrees within the grid'
    """
    if not theory:
        return ""
    rates = {end: f"{rate:.3g}" for end, rate in theory.items()}
    if len(rates) < len(brackets):  # otherwise their order says which end a rate belongs to
        rates = {end: f"{rate} at {axis} {end:.3g}" for end, rate in rates.items()}
    verdicts = [_judge_rate(rate, *brackets[end]) for end, rate in theory.items()]
    if set(verdicts) == {_AGREES}:
        return f"; the theory (train) predicts {' and '.join(rates.values())}, which {_AGREES}"
    each = [f"{rate} ({verdict})" for rate, verdict in zip(rates.values(), verdicts, strict=True)]
    return f"; the theory (train) predicts {' and '.join(each)}"


def _judge_rate(theory: float, low: float, high: float) -> str:
    """Compare a predicted rate with the bracket of the measured one.

    The factor is to the nearer end of the bracket, so the theory is off by at least that.

    >>> _judge_rate(2.5, 0.4, 2.5), _judge_rate(356.0, 0.4, 2.5)
    ('agrees within the grid', 'too high by a factor of at least 140')
    >>> _judge_rate(0.1, 0.4, 2.5)
    'too low by a factor of at least 4'
    """
    if low <= theory <= high:
        return _AGREES
    if not 0 < theory < np.inf:
        return "too high" if theory > high else "too low"
    side, factor = ("high", theory / high) if theory > high else ("low", low / theory)
    return f"too {side} by a factor of at least {float(f'{factor:.2g}'):g}"


def _train_line(diagram: xr.Dataset) -> xr.DataArray | None:
    """Return the critical learning rates of the train closure; None if there are none."""
    if "critical_learning_rate" not in diagram or "closure" not in diagram.coords:
        return None
    line = diagram["critical_learning_rate"]
    if "train" not in line["closure"].values:
        return None
    return line.sel(closure="train") if "closure" in line.dims else line


def _no_answer(line: xr.DataArray | None, is_answered: bool) -> str:
    """Return a sentence if the theory was asked and has no answer, with its reason."""
    if line is None or is_answered:
        return ""
    reason = line.attrs.get("no_answer")
    if not reason or not isinstance(reason, str):
        return " The theory (train) has no answer here; normscope theory says why."
    return f" The theory (train) has no answer: {reason.partition('. ')[0].rstrip('.')}."


def describe_scope(dataset: xr.Dataset) -> list[str]:
    """Describe what a scope measured: steps, losses, curvature."""
    steps = dataset["step"].values
    whose = f"A scope on {dataset.attrs.get('model', 'a model')} measured"
    if not steps.size:
        return [f"{whose} no step."]
    found = [
        f"{whose} {plural(len(steps), 'step')}, from {steps[0]} to {steps[-1]}; "
        f"{_course(dataset, 'loss', 'the loss')}.",
        *_describe_rays(dataset),
    ]
    headline = stability_headline(dataset)
    found += [f"{headline[0].upper()}{headline[1:]}."] if headline else []
    found += [
        f"{_course(dataset, name, f'The {quantity_name(name)}')}."
        for name in _DESCRIBED
        if name in dataset
        and dataset[name].dims == ("step",)
        and bool(dataset[name].notnull().any())
    ]
    return found


def scope_cards(dataset: xr.Dataset) -> list[Card]:
    """Return the last loss, roughness and top eigenvalue of a scope, those that were measured."""
    notes = {"effective_smoothness": ", larger is rougher"}
    found = []
    for name in ("loss", *_DESCRIBED):
        if name not in dataset or dataset[name].dims != ("step",):
            continue
        values, steps = dataset[name].values, dataset["step"].values
        measured = np.isfinite(values) | not_finite(dataset, values)
        if not measured.any():
            continue
        first, last = values[measured][0], values[measured][-1]
        value = f"{last:.3g}" if np.isfinite(last) else "not finite"
        note = f"at step {steps[measured][-1]}"
        note += f", from {first:.3g}" if measured.sum() > 1 else ""
        found.append(Card(quantity_name(name), value, note + notes.get(name, "")))
    return found


def not_finite(dataset: xr.Dataset, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values over steps are not finite, rather than not measured.

    NaN also stands for a quantity that was not measured at a step; the loss always is.
    """
    broken: NDArray[np.bool_] = np.isinf(values)
    if dataset["loss"].shape == values.shape:
        broken |= ~np.isfinite(values) & ~np.isfinite(dataset["loss"].values)
    return broken


def _describe_rays(dataset: xr.Dataset) -> list[str]:
    """Describe how much the loss varied along the gradient."""
    if "ray_loss" not in dataset or set(dataset["ray_loss"].dims) != {"step", "distance"}:
        return []
    rays = dataset["ray_loss"].transpose("step", "distance").values
    measured = rays[~np.isnan(rays).all(1) | ~np.isfinite(dataset["loss"].values)]
    finite = measured[np.isfinite(measured).all(1)]
    unknown = len(measured) - len(finite)
    lost = f"at {unknown} of {plural(len(measured), 'step')} it was not finite there"
    if not len(finite):
        return [f"Along the gradient, {lost}."] if unknown else []
    width = np.ptp(finite, axis=1)
    return [
        f"Along the gradient the loss varied by {np.median(width):.3g} in the median, "
        f"{width.max():.3g} at most{f'; {lost}' if unknown else ''}."
    ]


def _course(dataset: xr.Dataset, name: str, words: str) -> str:
    """Describe a quantity over steps: first and last finite value, and when it was not finite."""
    values, steps = dataset[name].values, dataset["step"].values
    known = values[np.isfinite(values)]
    if not known.size:
        return f"{words} was never finite"
    course = f"went from {known[0]:.4g} to {known[-1]:.4g}"
    text = f"{words} {course if known.size > 1 else f'was {known[0]:.4g}'}"
    broken = not_finite(dataset, values)
    after = np.flatnonzero(np.isfinite(values))[-1] + 1
    if broken[after:].any():
        text += f", then not finite from step {steps[after:][broken[after:]][0]}"
    if broken[:after].any():
        text += f", with {plural(int(broken[:after].sum()), 'step')} in between not finite"
    return text
