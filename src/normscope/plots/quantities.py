"""What the quantities that a scope measures, and their dimensions, are called by a reader."""

from __future__ import annotations

__all__ = ["BANDS", "dimension_name", "layer_name", "quantity_name"]

BANDS = ("ray_loss", "gradient_distance", "gradient_cosine")  # drawn from least to largest

_ALONG = "along the gradient"
_NAMES = {
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
    "effective_smoothness": "effective smoothness",
    "local_smoothness": "local smoothness",
    "top_eigenvalue": "top eigenvalue of the curvature",
    "top_eigenvalue_residual": "residual of the top eigenvalue",
    "shift_distance": "covariate shift, l2 difference",
    "shift_cosine": "covariate shift, cosine (1: none)",
    "gradient_norm": "gradient norm",
    "activation_mean": "mean of the activations",
    "activation_variance": "variance of the activations",
    "activation_mean_change": "change of the activations' mean",
    "activation_variance_change": "change of the activations' variance",
    "mean_gap": "mean, batch to running statistics",
    "spread_gap": "spread, batch to running statistics",
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


def quantity_name(variable: str) -> str:
    """A variable of a scope's results in words; one of a user's own probe by its name.

    >>> quantity_name("shift_distance"), quantity_name("my_own")
    ('covariate shift, l2 difference', 'my own')
    """
    return _NAMES.get(variable, variable.replace("_", " "))


def dimension_name(dimension: str) -> str:
    """What a dimension goes over.

    >>> dimension_name("norm_layer"), dimension_name("my_axis")
    ('normalization layers', 'my axis')
    """
    return _DIMENSIONS.get(dimension, dimension.replace("_", " "))


def layer_name(qualified: str) -> str:
    """A layer by its qualified name in the model; a bare number is said to be a layer's.

    >>> layer_name("features.0"), layer_name("4"), layer_name("")
    ('features.0', 'layer 4', '(the model itself)')
    """
    if not qualified:
        return "(the model itself)"
    return f"layer {qualified}" if qualified.isdecimal() else qualified
