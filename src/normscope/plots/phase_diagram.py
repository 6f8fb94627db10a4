"""Heat maps of test loss over a setting and the learning rate, with the theory's lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normscope.plots.axes import PlainLabels, PlainPlaces, logarithmic_axis
from normscope.plots.names import name_of, said_settings
from normscope.plots.style import new_figure
from normscope.plots.theory_lines import OUTSIDE, draw_lines, name_lines_outside
from normscope.results.settings import settings_of

__all__ = ["phase_diagram", "phase_diagrams", "write_settings"]

_LABELS = {"sigma_w": r"spread of the weights $\sigma_w$"}
_UNNAMED = ("none", "own")  # a normalization of a model's own is not known by name
_SPAN = 100.0  # of the colours, from the lowest loss on
_LETTERS, _MOST_LETTERS = 17.5, 105  # of the settings: to an inch, and in a line
_UNSAID = ("code", "divergence_factor")  # of no use to a reader of the figure
_WORDS = ("model", "data", "loss", "norm", "epochs", "batch_size", "momentum", "samples")


def phase_diagram(
    results: xr.Dataset, axes: Axes | None = None, with_settings: bool = True
) -> Axes:
    """Draw one heat map: mean test loss over the seeds, white where any run diverged.

    Grey: not computed yet, or failed. Red: the theory's critical rate by every closure, and half
    of the train closure's. Reference: wei2018, Figure 2.

    Args:
        results: as ``normscope.sweeps.phase_diagram`` returns it: ``test_loss`` and ``diverged``
            (setting, learning_rate, seed) and ``critical_learning_rate`` (closure, setting).
        axes: where to draw; None: a new figure.
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
            write_settings(figure, results)
    setting = _setting(results)
    results = results.sortby([setting, "learning_rate"])
    _draw_cells(axes, results, setting)
    if "critical_learning_rate" in results:
        draw_lines(axes, results["critical_learning_rate"], setting)
        name_lines_outside(axes)
    axes.set_xlabel(r"learning rate $\eta$")
    axes.set_ylabel(_label(results, setting))
    handles, labels = axes.get_legend_handles_labels()
    if figure is not None and handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=2,  # so that a phone shows it whole
            frameon=False,
            fontsize="small",
            columnspacing=1.2,
        )
    return axes


def _draw_cells(axes: Axes, results: xr.Dataset, setting: str) -> None:
    """The cells in ascending order, with their colours, between the borders of the grid."""
    diverged = (results["diverged"] == 1).any("seed").transpose(setting, "learning_rate").values
    loss = results["test_loss"].mean("seed").transpose(setting, "learning_rate").values
    shown = np.ma.masked_invalid(np.where(diverged, np.nan, loss))
    rates, values = results["learning_rate"].values, results[setting].values
    by_ratio = _is_logarithmic(values)
    x, y = _edges(rates, logarithmic=True), _edges(values, by_ratio)
    axes.set_facecolor("#BBBBBB")
    axes.pcolormesh(x, y, np.where(diverged, 1.0, np.nan), cmap="Greys", vmin=1, vmax=2)
    scale = None
    if shown.count() and shown.min() > 0:
        # a run about to diverge must not take the colours from all others
        scale = LogNorm(shown.min(), min(shown.max(), _SPAN * shown.min()))
    mesh = axes.pcolormesh(x, y, shown, cmap="viridis", norm=scale, rasterized=True)
    if shown.count():
        cut = scale is not None and shown.max() > _SPAN * shown.min()
        extend = "max" if cut else "neither"  # an arrow where losses are beyond the colours
        bar = axes.figure.colorbar(mesh, ax=axes, label="test loss", extend=extend)
        if scale is not None:
            bar.ax.yaxis.set_major_locator(PlainPlaces())
            bar.ax.yaxis.set_major_formatter(PlainLabels())
            bar.ax.minorticks_off()
    logarithmic_axis(axes, "xy" if by_ratio else "x")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])


def phase_diagrams(results: xr.Dataset) -> Figure:
    """Draw one heat map for each loss, side by side, with the settings below.

    Args:
        results: the same with a dimension ``loss``.

    Returns:
        The figure.
    """
    losses = [str(name) for name in results["loss"].values]
    figure = new_figure(width=5.4 * len(losses), height=4.6)
    panels = figure.subplots(1, len(losses), squeeze=False)[0]
    for axes, loss in zip(panels, losses, strict=True):
        phase_diagram(results.sel(loss=loss), axes)
        axes.set_title(loss.replace("_", " "), loc="left")
    keys: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        keys |= dict(zip(labels, handles, strict=True))
    for label in [each for each in keys if f"{each}{OUTSIDE}" in keys]:
        del keys[f"{label}{OUTSIDE}"]  # another panel shows it
    figure.legend(
        list(keys.values()),
        list(keys),
        loc="outside upper center",
        ncols=_legend_columns(list(keys)),
        frameon=False,
    )
    write_settings(figure, results)
    return figure


def _legend_columns(labels: Sequence[str]) -> int:
    """Four short names fit above two heat maps."""
    return 2 if any(label.endswith(OUTSIDE) for label in labels) else 4


def _setting(results: xr.Dataset) -> str:
    """The name of the vertical axis."""
    others = [dim for dim in results["test_loss"].dims if dim not in ("learning_rate", "seed")]
    return str(others[0])


def _label(results: xr.Dataset, setting: str) -> str:
    """What the vertical axis shows: of gamma, whose scale it is."""
    if setting != "gamma":
        return _LABELS.get(setting, setting.replace("_", " "))
    norm = str(settings_of(results).get("norm", "own"))
    owner = "the normalization" if norm in _UNNAMED else name_of(norm)
    return rf"initial scale of {owner} $\gamma$"


def _is_logarithmic(values: Sequence[float] | NDArray[np.float64]) -> bool:
    """Whether values are spaced by ratios rather than by differences."""
    array = np.asarray(values, dtype=float)
    if len(array) < 3 or not (array > 0).all():
        return False
    return bool(np.ptp(np.diff(np.log(array))) < np.ptp(np.diff(array)) / array.mean())


def _edges(values: NDArray[np.float64], logarithmic: bool) -> NDArray[np.float64]:
    """Borders between neighbouring values, in the middle of each pair on their own scale."""
    array = np.asarray(values, dtype=float)
    inner = np.log(array) if logarithmic else array
    gaps = np.diff(inner) if len(inner) > 1 else np.array([1.0])
    middles = inner[:-1] + gaps[: len(inner) - 1] / 2
    edges = np.concatenate([[inner[0] - gaps[0] / 2], middles, [inner[-1] + gaps[-1] / 2]])
    return np.exp(edges) if logarithmic else edges


def write_settings(figure: Figure, results: xr.Dataset) -> None:
    """Write the settings of the trainings below a figure.

    Args:
        figure: to write on.
        results: with the attribute ``settings``, as JSON, and the dimension ``seed``.
    """
    settings = said_settings(settings_of(results))
    for name in _UNSAID:
        settings.pop(name, None)
    first = [f"{name} {settings.pop(name)}" for name in _WORDS if settings.get(name) is not None]
    rest = [f"{name} {value}" for name, value in settings.items() if value not in (None, False)]
    seeds = results.sizes["seed"]
    text = ", ".join([*first, *rest, f"{seeds} seed{'' if seeds == 1 else 's'}"])
    letters = min(_MOST_LETTERS, int(_LETTERS * figure.get_figwidth()))
    figure.supxlabel("\n".join(textwrap.wrap(text, letters)), fontsize=7, color="#555555")
