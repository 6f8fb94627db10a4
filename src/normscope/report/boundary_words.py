"""Where training begins to diverge on the grid of a phase diagram, measured and in words."""

from __future__ import annotations

import numpy as np
import xarray as xr

__all__ = ["boundary_words", "grid_boundary", "grid_bracket"]

_AGREES = "agrees within the grid"


def grid_bracket(panel: xr.Dataset) -> xr.Dataset:
    """The last stable and the first exploded rate of each row; the critical one lies between.

    A cell is stable if all its seeds have a result and none exploded; cells that failed or have
    not been computed are neither, and the bracket closes over them.

    Args:
        panel: one diagram.

    Returns:
        ``low`` and ``high``; not-a-number where the grid does not hold both.
    """
    panel = panel.sortby("learning_rate")
    exploded = (panel["diverged"] == 1).any("seed").transpose(..., "learning_rate")
    stable = panel["test_loss"].notnull().all("seed").transpose(..., "learning_rate") & ~exploded
    rates = panel["learning_rate"].values
    found = np.full((2, exploded.shape[0]), np.nan)
    for row, (bad, good) in enumerate(zip(exploded.values, stable.values, strict=True)):
        below = rates[good & (rates < rates[bad].min(initial=np.inf))]
        if bad.any() and len(below):
            found[:, row] = below[-1], rates[bad][0]
    axis = exploded.dims[0]
    return xr.Dataset({"low": (axis, found[0]), "high": (axis, found[1])}, {axis: exploded[axis]})


def grid_boundary(panel: xr.Dataset) -> xr.DataArray:
    """The measured critical rate of each row, as one number.

    Args:
        panel: one diagram.

    Returns:
        The geometric mean of the ends of `grid_bracket`; not-a-number where it has none.
    """
    bracket = grid_bracket(panel)
    return (bracket["low"] * bracket["high"]) ** 0.5


def boundary_words(diagram: xr.Dataset) -> str:
    """Between which learning rates training begins to diverge, at both ends of the other setting.

    Args:
        diagram: ``test_loss`` and ``diverged`` over a setting, the learning rate and the seed, and
            ``critical_learning_rate`` if the theory has any.
    """
    bracket = grid_bracket(diagram)
    (axis,) = map(str, bracket.dims)
    known = bracket.dropna(axis)
    line = _line_of(diagram)
    if not known.sizes[axis]:
        told = "The learning rates hold no boundary between trainings that held and diverged."
        return told + _no_answer(line, bool(line is not None and line.notnull().any()))
    ends = dict.fromkeys([float(known[axis].min()), float(known[axis].max())])
    brackets = {end: _ends(known.sel({axis: end})) for end in ends}
    places = [
        f"between {low:.3g} and {high:.3g} at {axis} {end:.3g}"
        for end, (low, high) in brackets.items()
    ]
    told = f"Training begins to diverge at a learning rate {' and '.join(places)}"
    theory = {} if line is None else {end: float(line.sel({axis: end})) for end in ends}
    theory = {end: rate for end, rate in theory.items() if not np.isnan(rate)}
    return f"{told}{_beside(theory, brackets, axis)}.{_no_answer(line, bool(theory))}"


def _ends(bracket: xr.Dataset) -> tuple[float, float]:
    return float(bracket["low"]), float(bracket["high"])


def _beside(
    theory: dict[float, float], brackets: dict[float, tuple[float, float]], axis: str
) -> str:
    """The theory's rates and how they lie to what was measured, "" if it has none.

    >>> _beside({1.0: 2.39}, {1.0: (0.398, 2.51)}, "gamma")
    '; the theory (train) has 2.39, which agrees within the grid'
    """
    if not theory:
        return ""
    words = {end: f"{rate:.3g}" for end, rate in theory.items()}
    if len(words) < len(brackets):  # which end a rate is of is not plain then
        words = {end: f"{rate} at {axis} {end:.3g}" for end, rate in words.items()}
    judged = [_judged(rate, *brackets[end]) for end, rate in theory.items()]
    if set(judged) == {_AGREES}:
        return f"; the theory (train) has {' and '.join(words.values())}, which {_AGREES}"
    said = [f"{rate} ({how})" for rate, how in zip(words.values(), judged, strict=True)]
    return f"; the theory (train) has {' and '.join(said)}"


def _judged(theory: float, low: float, high: float) -> str:
    """How a rate of the theory lies to the bracket.

    Off by the factor to the nearer end: the boundary lies somewhere between the ends, and by less
    than this the theory cannot be off.

    >>> _judged(2.5, 0.4, 2.5), _judged(356.0, 0.4, 2.5), _judged(0.1, 0.4, 2.5)
    ('agrees within the grid', 'too high by a factor of at least 140', 'too low by a factor of at \
least 4')
    """
    if low <= theory <= high:
        return _AGREES
    if not 0 < theory < np.inf:
        return "too high" if theory > high else "too low"
    side, factor = ("high", theory / high) if theory > high else ("low", low / theory)
    return f"too {side} by a factor of at least {float(f'{factor:.2g}'):g}"


def _line_of(diagram: xr.Dataset) -> xr.DataArray | None:
    """The critical learning rates by the theory of training; None if it was not asked."""
    if "critical_learning_rate" not in diagram or "closure" not in diagram.coords:
        return None
    line = diagram["critical_learning_rate"]
    if "train" not in line["closure"].values:
        return None
    return line.sel(closure="train") if "closure" in line.dims else line


def _no_answer(line: xr.DataArray | None, is_answered: bool) -> str:
    """Where the theory was asked and has nothing to say, a sentence: the first of its reason."""
    if line is None or is_answered:
        return ""
    reason = line.attrs.get("no_answer")
    if not reason or not isinstance(reason, str):
        return " The theory (train) has no answer here; normscope theory says why."
    return f" The theory (train) has no answer: {reason.partition('. ')[0].rstrip('.')}."
