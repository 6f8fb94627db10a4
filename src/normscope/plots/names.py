"""Names of normalizations, statements, settings and measured quantities, as readers see them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

BANDS = ("ray_loss", "gradient_distance", "gradient_cosine")  # drawn from least to largest

_STATEMENT = re.compile(r"(theorem|fact|lemma)_(\w)_?(\d+)")
_ALL_IF_NONE = ("samples", "test_samples")
_NORMS = {
    "none": "no normalization",
    "batch": "BatchNorm",
    "noisy": "noisy BatchNorm",
    "l1": "l1 norm",
    "l2": "l2 norm",
    "linf": "l-infinity norm",
    "layer": "LayerNorm",
    "group": "GroupNorm",
    "rms": "RMSNorm",
    "instance": "InstanceNorm",
    "dyt": "dynamic tanh",
}
_ALONG = "along the gradient"
_QUANTITIES = {  # others are called by the words of their name
    "ray_loss": f"loss {_ALONG}",
    "loss_low": f"lowest loss {_ALONG}",
    "loss_high": f"highest loss {_ALONG}",
    "gradient_distance": "change of the gradient along it",
    "gradient_distance_low": "least change of the gradient along it",
    "gradient_distance_high": "largest change of the gradient along it",
    "gradient_cosine": "cosine of the gradients along it",
    "gradient_cosine_low": "lowest cosine of the gradients along it",
    "gradient_cosine_high": "highest cosine of the gradients along it",
    "smoothness": "change of the gradient per distance",
    "effective_smoothness": "roughness (beta)",
    "local_smoothness": "roughness (beta) of short steps",
    "top_eigenvalue": "top eigenvalue of the curvature",
    "top_eigenvalue_residual": "residual of the top eigenvalue",
    "shift_distance": "covariate shift, l2 difference",
    "shift_cosine": "covariate shift, cosine (1: none)",
    "activation_mean": "mean of the activations",
    "activation_variance": "variance of the activations",
    "activation_mean_change": "change of the activations' mean",
    "activation_variance_change": "change of the activations' variance",
    "mean_gap": "mean, batch to running statistics",
    "spread_gap": "spread, batch to running statistics",
    "critical_rate": "critical learning rate",
    "critical_rate_error": "relative error of the critical rate",
    "stability_distance": "critical rate / learning rate",
    "directional_sharpness": "sharpness along the update",
    "directional_threshold": "edge along the update",
    "sharpness_error": "relative error of the sharpness",
    "sharpness_threshold": "edge for the full batch",
    "preconditioned_sharpness_error": "relative error of the preconditioned sharpness",
    "preconditioned_threshold": "edge of the preconditioned sharpness",
    "batch_threshold_small": "edge of small batches",
    "batch_threshold_large": "edge of large batches",
    "histogram_low": "lower end of the histogram",
    "histogram_high": "upper end of the histogram",
}
_DIMENSIONS = {
    "layer": "layers",
    "norm_layer": "normalization layers",
    "unit": "units",
    "distance": f"distances {_ALONG}",
    "comparison": "comparisons",
    "bin": "bins",
}


def name_of(norm: str) -> str:
    """Return the name of a normalization; its key if it has none.

    >>> name_of("layer")
    'LayerNorm'
    """
    return _NORMS.get(norm, norm)


def with_norm(norm: str) -> str:
    """Return a phrase for a network with a normalization.

    >>> with_norm("none"), with_norm("l1")
    ('without normalization', 'with the l1 norm')
    """
    if norm == "none":
        return "without normalization"
    name = name_of(norm)
    return f"with the {name}" if name.endswith(" norm") else f"with {name}"


def display_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a sweep with "all" for an unlimited number of samples.

    >>> display_settings({"samples": None, "epochs": 2, "width": None})
    {'samples': 'all', 'epochs': 2, 'width': None}
    """
    return {
        name: "all" if name in _ALL_IF_NONE and value is None else value
        for name, value in settings.items()
    }


def statement_name(key: str) -> str:
    """Return a statement as its paper numbers it.

    >>> statement_name("theorem_4_2 (norm_preserving)"), statement_name("fact_c1")
    ('Theorem 4.2 (norm preserving)', 'Fact C.1')
    """

    def numbered(found: re.Match[str]) -> str:
        return f"{found[1].capitalize()} {found[2].upper()}.{found[3]}"

    return _STATEMENT.sub(numbered, key).replace("_", " ")


def quantity_name(variable: str) -> str:
    """Return the name of a measured quantity; for a custom probe, its variable's name.

    >>> quantity_name("shift_distance"), quantity_name("my_own")
    ('covariate shift, l2 difference', 'my own')
    """
    return _QUANTITIES.get(variable, variable.replace("_", " "))


def dimension_name(dimension: str) -> str:
    """Return what a dimension goes over, in the plural.

    >>> dimension_name("norm_layer"), dimension_name("my_axis")
    ('normalization layers', 'my axis')
    """
    return _DIMENSIONS.get(dimension, dimension.replace("_", " "))


def layer_name(qualified: str) -> str:
    """Return the label of a layer: its qualified name, with "layer" before a bare number.

    >>> layer_name("features.0"), layer_name("4"), layer_name("")
    ('features.0', 'layer 4', '(the model itself)')
    """
    if not qualified:
        return "(the model itself)"
    return f"layer {qualified}" if qualified.isdecimal() else qualified
