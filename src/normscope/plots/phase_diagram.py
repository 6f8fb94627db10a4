"""Phase diagrams and stability boundaries of sweeps, with the theory's critical learning rates."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normscope.plots.axes import LogLabels, LogTicks, logarithmic_axis
from normscope.plots.labels import add_values
from normscope.plots.names import display_settings, name_of
from normscope.plots.style import CLOSURE_DASHES, INK, legend_entries, named_legend, new_figure
from normscope.results.record import training_settings

_LABELS = {"gamma": r"$\gamma$", "sigma_w": r"spread of the weights $\sigma_w$"}
_UNNAMED = ("none", "own")  # the name of a model's own normalization is not known
_SPAN = 100.0  # largest over lowest loss of the colour scale
_LETTERS, _MOST_LETTERS = 17.5, 105  # of the settings: per inch, and per line
_OMITTED = ("code", "divergence_factor")  # settings that do not help to read the figure
_FIRST = ("model", "data", "loss", "norm", "epochs", "batch_size", "momentum", "samples")
_OUTSIDE = " (off the picture)"
_THEORY_COLOUR = "#D62728"
_SAME = 1e-3  # relative difference of rates within the width of a line


def phase_diagram(
    results: xr.Dataset, axes: Axes | None = None, with_settings: bool = True
) -> Axes:
    """Draw one heat map: mean test loss over the seeds, white where any run diverged.

    Grey cells are not computed yet, or failed. Red lines are the theory's critical learning rate by
    every closure, and half of the train closure's. Reference: wei2018, Figure 2.

    Args:
        results: as ``normscope.sweeps.phase_diagram`` returns it: ``test_loss`` and ``diverged``
            (setting, learning_rate, seed) and ``critical_learning_rate`` (closure, setting). With
            ``boundary_low`` and ``boundary_high`` (boundary_SETTING, boundary_seed) the brackets of
            a bisection are drawn too.
        axes: to draw on; None for a new figure.
        with_settings: whether a new figure has the settings written on it, if the results have
            them.

    Returns:
        The axes drawn on.
    """
    figure = None
    if axes is None:
        figure = new_figure(width=5.4, height=4.4)
        axes = figure.subplots()
        if with_settings and "settings" in results.attrs:
            _write_settings(figure, results)
    others = {"learning_rate", "seed"}
    setting = next(str(dim) for dim in results["test_loss"].dims if dim not in others)
    results = results.sortby([setting, "learning_rate"])
    _draw_cells(axes, results, setting)
    if "critical_learning_rate" in results:
        _draw_theory(axes, results["critical_learning_rate"], setting)
        _label_lines_outside(axes)
    if "boundary_low" in results:
        _draw_boundary(axes, results, setting)
    axes.set(xlabel=r"learning rate $\eta$", ylabel=_vertical_label(results, setting))
    entries = legend_entries(axes)
    if figure is not None and entries:
        # two columns fit the width of a phone
        style: dict[str, Any] = {"ncols": 2, "fontsize": "small", "columnspacing": 1.2}
        named_legend(figure, entries, loc="outside upper center", **style)
    return axes


def phase_diagrams(results: xr.Dataset) -> Figure:
    """Draw one heat map for each loss, side by side, with the settings below.

    Args:
        results: as for `phase_diagram`, with a dimension ``loss``.

    Returns:
        The figure.
    """
    losses = [str(name) for name in results["loss"].values]
    figure = new_figure(width=5.4 * len(losses), height=4.6)
    panels = figure.subplots(1, len(losses), squeeze=False)[0]
    for axes, loss in zip(panels, losses, strict=True):
        phase_diagram(results.sel(loss=loss), axes)
        axes.set_title(loss.replace("_", " "), loc="left")
    entries = legend_entries(*panels)
    for label in [each for each in entries if f"{each}{_OUTSIDE}" in entries]:
        del entries[f"{label}{_OUTSIDE}"]  # another panel shows the line
    is_wide = len(losses) == 1 or any(label.endswith(_OUTSIDE) for label in entries)
    named_legend(figure, entries, loc="outside upper center", ncols=2 if is_wide else 4)
    _write_settings(figure, results)
    return figure


def boundary(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw the critical learning rate of every gamma and seed, with the theory's lines.

    Args:
        results: as ``normscope.sweeps.boundary`` returns it: ``critical_learning_rate``, ``low``
            and ``high`` (gamma, seed) and ``theory`` (closure, gamma), or of another setting.
        axes: to draw on; None for a new figure with the settings written on it.

    Returns:
        The axes drawn on.
    """
    if axes is None:
        figure = new_figure(width=6.4, height=4.8)
        axes = figure.subplots()
        _write_settings(figure, results)
    setting = str(results["critical_learning_rate"].dims[0])
    results = results.sortby(setting)
    for index, seed in enumerate(results["seed"].values):
        one = results.sel(seed=seed)
        middle = one["critical_learning_rate"].values
        spread = np.abs(np.stack([middle - one["low"].values, one["high"].values - middle]))
        spread = np.where(np.isfinite(spread), spread, 0.0)
        style: dict[str, Any] = {"fmt": "o", "ms": 4, "color": "#333333"}
        label = "measured" if index == 0 else None
        axes.errorbar(middle, one[setting], xerr=spread, label=label, **style)
    _draw_theory(axes, results["theory"], setting)
    logarithmic_axis(axes, "x")
    label = _LABELS.get(setting, setting.replace("_", " "))
    axes.set(xlabel=r"critical learning rate $\eta_*$", ylabel=label)
    axes.legend(frameon=False)
    return axes


def _draw_cells(axes: Axes, results: xr.Dataset, setting: str) -> None:
    """Draw the cells in ascending order and set the limits to the borders of the grid."""
    diverged = (results["diverged"] == 1).any("seed").transpose(setting, "learning_rate").values
    loss = results["test_loss"].mean("seed").transpose(setting, "learning_rate").values
    shown = np.ma.masked_invalid(np.where(diverged, np.nan, loss))
    rates, values = results["learning_rate"].values, results[setting].values
    logarithmic = _is_logarithmic(values)
    x, y = _cell_edges(rates, logarithmic=True), _cell_edges(values, logarithmic)
    axes.set_facecolor("#BBBBBB")
    axes.pcolormesh(x, y, np.where(diverged, 1.0, np.nan), cmap="Greys", vmin=1, vmax=2)
    scale = None
    if shown.count() and shown.min() > 0:
        # a run about to diverge must not take up the whole colour scale
        scale = LogNorm(shown.min(), min(shown.max(), _SPAN * shown.min()))
    mesh = axes.pcolormesh(x, y, shown, cmap="viridis", norm=scale, rasterized=True)
    for value, row in zip(values, np.where(diverged, np.nan, loss), strict=True):
        known, name = np.isfinite(row), f"{setting.replace('_', ' ')} {value:.4g}"
        heights = np.full(int(known.sum()), value)
        add_values(axes, rates[known], heights, ("learning rate", "test loss"), name, row[known])
    if shown.count():
        cut = scale is not None and shown.max() > _SPAN * shown.min()
        extend = "max" if cut else "neither"  # an arrow if losses are beyond the scale
        bar = axes.figure.colorbar(mesh, ax=axes, label="test loss", extend=extend)
        if scale is not None:
            bar.ax.yaxis.set_major_locator(LogTicks())
            bar.ax.yaxis.set_major_formatter(LogLabels())
            bar.ax.minorticks_off()
    logarithmic_axis(axes, "xy" if logarithmic else "x")
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def _is_logarithmic(values: Sequence[float] | NDArray[np.float64]) -> bool:
    """Return whether values are spaced by ratios rather than by differences."""
    array = np.asarray(values, dtype=float)
    if len(array) < 3 or not (array > 0).all():
        return False
    return bool(np.ptp(np.diff(np.log(array))) < np.ptp(np.diff(array)) / array.mean())


def _cell_edges(values: NDArray[np.float64], logarithmic: bool) -> NDArray[np.float64]:
    """Return the borders between neighbouring values, in the middle of each pair on their scale."""
    array = np.asarray(values, dtype=float)
    inner = np.log(array) if logarithmic else array
    gaps = np.diff(inner) if len(inner) > 1 else np.array([1.0])
    middles = inner[:-1] + gaps[: len(inner) - 1] / 2
    edges = np.concatenate([[inner[0] - gaps[0] / 2], middles, [inner[-1] + gaps[-1] / 2]])
    return np.exp(edges) if logarithmic else edges


def _vertical_label(results: xr.Dataset, setting: str) -> str:
    """Return the label of the vertical axis; for gamma, with the normalization it scales."""
    if setting != "gamma":
        return _LABELS.get(setting, setting.replace("_", " "))
    norm = str(training_settings(results).get("norm", "own"))
    owner = "the normalization" if norm in _UNNAMED else name_of(norm)
    return rf"initial scale of {owner} $\gamma$"


def _draw_theory(axes: Axes, rates: xr.DataArray, setting: str) -> None:
    """Draw the theory's critical learning rate by every closure, and half of the train closure's.

    Closures that agree, such as train and frozen of a network without batch statistics, share one
    line and legend entry. A closure without values is left out.

    Args:
        axes: to draw on.
        rates: over (closure, setting).
        setting: the dimension on the vertical axis.
    """
    for closures in _equal_closures(rates):
        line = rates.sel(closure=closures[0])
        style = CLOSURE_DASHES.get(closures[0], "-.")
        label = f"theory, {' and '.join(closures)}"
        axes.plot(line, line[setting], style, color=_THEORY_COLOUR, label=label)
    half = rates.sel(closure="train") / 2
    if bool(np.isfinite(half).any()):
        label = "half of it, train"
        axes.plot(half, half[setting], "-", color=_THEORY_COLOUR, lw=0.7, label=label)


def _draw_boundary(axes: Axes, results: xr.Dataset, setting: str) -> None:
    """Draw boundaries found by bisection: the lowest of the seeds, with all brackets' ends."""
    low, high = (
        results[f"boundary_{end}"].transpose(..., "boundary_seed") for end in ("low", "high")
    )
    values = results[f"boundary_{setting}"].values
    middle = np.sqrt(low.min("boundary_seed").values * high.min("boundary_seed").values)
    known = np.isfinite(middle) & (middle > 0)
    ends = np.stack([low.min("boundary_seed").values, high.max("boundary_seed").values])
    reach = np.abs(ends - middle)[:, known]
    style: dict[str, Any] = {"fmt": "o-", "ms": 4, "color": "black", "label": "measured, bisected"}
    axes.errorbar(middle[known], values[known], xerr=reach, **style)


def _label_lines_outside(axes: Axes) -> None:
    """Mark in the legend which lines lie beyond the limits of the axes."""
    for line in axes.lines:
        path = line.get_path().transformed(line.get_transform())
        if not path.intersects_bbox(axes.bbox, filled=False):
            line.set_label(f"{line.get_label()}{_OUTSIDE}")


def _equal_closures(rates: xr.DataArray) -> list[list[str]]:
    """Group the closures that have values by equal values."""
    groups: list[list[str]] = []
    for closure in map(str, rates["closure"].values):
        values = rates.sel(closure=closure).values
        if not np.isfinite(values).any():
            continue
        for group in groups:
            other = rates.sel(closure=group[0]).values
            if np.allclose(values, other, rtol=_SAME, atol=0.0, equal_nan=True):
                group.append(closure)
                break
        else:
            groups.append([closure])
    return groups


def _write_settings(figure: Figure, results: xr.Dataset) -> None:
    """Write the settings of the training runs below a figure.

    Args:
        figure: to write on.
        results: with the attribute ``settings``, as JSON, and the dimension ``seed``.
    """
    settings = display_settings(training_settings(results))
    for name in _OMITTED:
        settings.pop(name, None)
    first = [f"{name} {settings.pop(name)}" for name in _FIRST if settings.get(name) is not None]
    rest = [f"{name} {value}" for name, value in settings.items() if value not in (None, False)]
    seeds = results.sizes["seed"]
    text = ", ".join([*first, *rest, f"{seeds} seed{'' if seeds == 1 else 's'}"])
    letters = min(_MOST_LETTERS, int(_LETTERS * figure.get_figwidth()))
    figure.supxlabel("\n".join(textwrap.wrap(text, letters)), fontsize=7, color=INK)
