"""The diagram's settings where none are given, at each scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normscope.import_path import is_import_path
from normscope.registry import unknown_name

__all__ = ["DEFAULT_GAMMAS", "DEFAULT_RATES", "MODEL", "SCALES", "swept"]

MODEL = "fully_connected"
DEFAULT_GAMMAS = (0.1, 0.3, 1.0, 3.0)
DEFAULT_RATES = (0.001, 0.01, 0.1, 1.0)
SCALES: dict[str, dict[str, Any]] = {
    "quick": {"data": "digits", "width": 64, "epochs": 2},
    "small": {"data": "mnist", "epochs": 1, "samples": 12800, "test_samples": 2000},
    "paper": {"data": "mnist", "epochs": 5},
}


def swept(
    given: Mapping[str, Sequence[Any]], scale: str
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Settings as a command gives them, told apart: those that vary, and the others.

    Args:
        given: for each setting one value or several; gamma and learning_rate always vary.
        scale: quick, small or paper, for settings that are not given.

    Returns:
        The axes, the learning rate last, and the settings that are fixed.
    """
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    default = {"gamma": DEFAULT_GAMMAS, "learning_rate": DEFAULT_RATES}
    values = {name: list(each) for name, each in {**default, **given}.items()}
    axes = {name: each for name, each in values.items() if name in default or len(each) > 1}
    axes["learning_rate"] = axes.pop("learning_rate")
    fixed = {name: each[0] for name, each in values.items() if name not in axes}
    chosen = {**SCALES[scale], **fixed}
    if any(
        isinstance(data, str) and is_import_path(data, "samples") for data in values.get("data", ())
    ):
        for name in {"samples", "test_samples"} - set(fixed):
            chosen.pop(name, None)  # the scale's are those of its own data
    if any(model != MODEL for model in values.get("model", ())) and "width" not in fixed:
        chosen.pop("width", None)  # the scale's is that of the fully connected net
    return axes, {name: value for name, value in chosen.items() if name not in axes}
