"""Where training begins to diverge on the grid of a phase diagram, measured and in words."""

from __future__ import annotations

import numpy as np
import xarray as xr

__all__ = ["boundary_words", "grid_boundary"]

_FAR = 2.0  # from this factor on a difference is worth a word


def grid_boundary(panel: xr.Dataset) -> xr.DataArray:
    """The measured critical rate of each row: between the last stable and the first exploded one.

    A cell is stable if all its seeds have a result and none exploded; cells that failed or have
    not been computed are neither, and the bracket closes over them.

    Args:
        panel: one diagram.

    Returns:
        The geometric mean of the two; not-a-number where the grid does not hold both.
    """
    panel = panel.sortby("learning_rate")
    exploded = (panel["diverged"] == 1).any("seed").transpose(..., "learning_rate")
    stable = panel["test_loss"].notnull().all("seed").transpose(..., "learning_rate") & ~exploded
    rates = panel["learning_rate"].values
    found = np.full(exploded.shape[0], np.nan)
    for row, (bad, good) in enumerate(zip(exploded.values, stable.values, strict=True)):
        below = rates[good & (rates < rates[bad].min(initial=np.inf))]
        if bad.any() and len(below):
            found[row] = np.sqrt(below[-1] * rates[bad][0])
    return xr.DataArray(
        found, dims=exploded.dims[:1], coords={exploded.dims[0]: exploded[exploded.dims[0]]}
    )


def boundary_words(diagram: xr.Dataset) -> str:
    """From which learning rate on training diverges, at both ends of the other setting.

    Args:
        diagram: ``test_loss`` and ``diverged`` over a setting, the learning rate and the seed, and
            ``critical_learning_rate`` if the theory has any.
    """
    measured = grid_boundary(diagram)
    axis = str(measured.dims[0])
    known = measured[np.isfinite(measured.values)]
    if not known.size:
        return "The learning rates hold no boundary between trainings that held and diverged."
    ends = dict.fromkeys([float(known[axis].min()), float(known[axis].max())])
    places = [f"{float(known.sel({axis: end})):.3g} at {axis} {end:.3g}" for end in ends]
    told = f"Training diverges above a learning rate of about {' and '.join(places)}"
    rates = _theory(diagram, axis, list(ends))
    words = {end: f"{rate:.3g}" for end, rate in rates.items()}
    if len(words) < len(ends):  # which end a rate is of is not plain then
        words = {end: f"{rate} at {axis} {end:.3g}" for end, rate in words.items()}
    theory = f"; the theory (train) has {' and '.join(words.values())}" if words else ""
    return f"{told}{theory}{_off([(rates[end], float(known.sel({axis: end}))) for end in rates])}."


def _off(pairs: list[tuple[float, float]]) -> str:
    """How far theory and measurement are apart, if that is far at either end.

    >>> _off([(356.0, 20.8), (0.27, 10.0)]), _off([(4.0, 3.2)])
    (', off by a factor of 17 and 37', '')
    """
    known = [pair for pair in pairs if 0 < pair[0] < np.inf]
    factors = [max(theory / found, found / theory) for theory, found in known]
    if len(known) < len(pairs) or max(factors, default=1.0) <= _FAR:
        return ""
    words = [f"{float(f'{each:.2g}'):g}" for each in factors]
    return f", off by a factor of {' and '.join(words)}"


def _theory(diagram: xr.Dataset, axis: str, ends: list[float]) -> dict[float, float]:
    """The critical learning rates by the theory of training, at those ends where it has one."""
    if "critical_learning_rate" not in diagram or "closure" not in diagram.coords:
        return {}
    line = diagram["critical_learning_rate"]
    if "train" not in line["closure"].values:
        return {}
    if "closure" in line.dims:
        line = line.sel(closure="train")
    rates = {end: float(line.sel({axis: end})) for end in ends}
    return {end: rate for end, rate in rates.items() if not np.isnan(rate)}
