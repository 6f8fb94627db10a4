"""The look of every figure: sizes, and one colour per normalization wherever it appears."""

from __future__ import annotations

from collections.abc import Sized

from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any kind of colour vision.
_COLOURS = {
    "none": "#000000",
    "batch": "#D55E00",
    "noisy": "#CC79A7",
    "l1": "#009E73",
    "l2": "#56B4E9",
    "linf": "#E69F00",
    "layer": "#0072B2",
    "group": "#8C6D31",
}


def colour_of(norm: str) -> str:
    """The colour of a normalization; grey for one that the house does not know."""
    return _COLOURS.get(norm, "#777777")


def new_figure(width: float = 6.4, height: float = 4.0) -> Figure:
    """An empty figure that no window and no global state of pyplot knows of."""
    return Figure(figsize=(width, height), layout="constrained")


def lone_marker(places: Sized) -> str:
    """The marker of a line: a dot for one place alone, where a line shows nothing."""
    return "o" if len(places) == 1 else "None"
