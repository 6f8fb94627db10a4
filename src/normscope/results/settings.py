"""The settings that a dataset of trainings carries."""

from __future__ import annotations

import json
from typing import Any

import xarray as xr

__all__ = ["settings_of"]


def settings_of(dataset: xr.Dataset) -> dict[str, Any]:
    """Those of the trainings, by name.

    Args:
        dataset: with JSON in its attribute ``settings``.

    Returns:
        The settings; empty where there are none that can be read.

    >>> settings_of(xr.Dataset(attrs={"settings": '{"momentum": 0.9}'}))
    {'momentum': 0.9}
    """
    try:
        found = json.loads(dataset.attrs.get("settings", "{}"))
    except (TypeError, ValueError):  # a file from elsewhere may hold anything by that name
        return {}
    return found if isinstance(found, dict) else {}
