"""Figure 2: test loss over learning rate and gamma, with the theory's critical rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.wei2018.phase_diagram import (
    BISECTED,
    DEFAULTS,
    EVERYTHING,
    agreement,
    diagrams,
    geometric,
    nearest_half,
    smaller_is,
)
from normscope.plots.phase_diagram import phase_diagrams
from normscope.results import Claim

SMALL: dict[str, Any] = {
    "gammas": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0),
    "learning_rates": geometric(1e-3, 30, 14),
}
MEDIUM: dict[str, Any] = {
    **BISECTED,
    "gammas": (0.1, 0.5, 1.0, 2.0),
    "boundary_gammas": (0.1, 0.5, 1.0, 2.0),
    "learning_rates": geometric(1e-3, 30, 8),
}
PAPER: dict[str, Any] = {
    **EVERYTHING,
    "gammas": tuple(np.linspace(0.1, 3, 30).tolist()),
    "learning_rates": geometric(1e-3, 30, 40),
    "seeds": 5,
}
#: The model and its options; None: it has none, or its own.
NETWORK = {"model": "fully_connected", "width": None, "channels": None, "padding": None}
# options of each model, at the paper's size and at quick scale
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fully_connected": ({"width": 1000}, {"width": 48}),
    "conv_net": ({"channels": (30, 60, 90), "padding": 0}, {"channels": (6, 8, 10), "padding": 1}),
}
QUICK: dict[str, Any] = {
    "data": "digits",
    "gammas": (0.3, 1.0, 3.0),
    "learning_rates": geometric(1e-2, 30, 7),
    "epochs": 2.0,
    "samples": None,
    "test_samples": None,
    "seeds": 1,
    "workers": 1,
    "threads": 1,
}


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "wei2018, Figure 2"
    return [
        *agreement(results, source),
        *nearest_half(results, source),
        *smaller_is(results, source, "the smaller gamma, the lower the test loss it can reach"),
    ]


def panel(
    *, gammas: Sequence[float], boundary_gammas: Sequence[float], **settings: Any
) -> xr.Dataset:
    """Test loss over gamma and learning rate with the theory's lines: one panel of Figure 2.

    Reference: wei2018, Figure 2 and Section 4.

    Args:
        gammas: initial scales of the normalization.
        boundary_gammas: where the boundary is searched by bisection; none: it is the grid's.
        **settings: model (fully_connected with four layers, or conv_net with three convolutions),
            its width, channels and padding (None: its own), and those of `diagrams`.

    Returns:
        That of `diagrams` over gamma.
    """
    return diagrams("gamma", gammas, boundary_gammas, **settings)


for _model, (_options, _quick) in MODELS.items():
    for _data in ("mnist", "cifar10"):
        _own = {"data": _data, "model": _model, **_options}
        experiment(
            f"wei2018/figure2_{_data}_{_model}",
            claims=_claims,
            figure=phase_diagrams,
            defaults={**NETWORK, **DEFAULTS, **SMALL, "boundary_gammas": ()},
            scales={
                "quick": {**_own, **QUICK, **_quick},
                "small": _own,
                "medium": {**_own, **MEDIUM},
                "paper": {**_own, **PAPER},
            },
        )(panel)
