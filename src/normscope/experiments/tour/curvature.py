"""The curvature before training: its whole spectrum, and its largest value in three modes."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from torch import Tensor

from normscope.curvature import spectrum, top_eigenvalue
from normscope.errors import NormscopeError
from normscope.experiments.tour.net import LOSS, Net

__all__ = ["MODES", "THRESHOLD", "curvature"]

MODES = ("train", "frozen", "eval")
THRESHOLD = 1e-3  # of the linear part of the axis, the same for every normalization


def curvature(
    net: Net, norm: str, seed: int, samples: int, probes: int, products: int
) -> xr.Dataset:
    """Density of the Hessian's eigenvalues in train mode, and lambda_max as each mode has it.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights, noise and random directions.
        samples: of the batch.
        probes: random directions of the spectrum.
        products: with the Hessian, for each of them.

    Returns:
        ``eigenvalue``, ``density`` and ``density_error`` (point); ``lowest`` and ``highest``, the
        ends of the spectrum; ``parameters``; ``lambda_max`` (mode) of the Gauss-Newton matrix, not
        a number where a layer does not have the mode.
    """
    model, batch = net.model(norm, seed), net.batch(samples)
    found = spectrum(
        model,
        LOSS,
        batch,
        kind="hessian",
        probes=probes,
        lanczos_steps=products,
        seed=seed,
        linear_threshold=THRESHOLD,
    )
    curves = {name: ("point", found[name].values) for name in ("density", "density_error")}
    return xr.Dataset(
        {
            "eigenvalue": ("point", found["eigenvalue"].values),
            **curves,
            "lowest": float(found["nodes"].min()),
            "highest": float(found["nodes"].max()),
            "parameters": found.attrs["parameters"],
            "lambda_max": ("mode", [_largest(net, norm, seed, batch, mode) for mode in MODES]),
        },
        coords={"point": np.arange(found.sizes["eigenvalue"]), "mode": list(MODES)},
    )


def _largest(net: Net, norm: str, seed: int, batch: tuple[Tensor, Tensor], mode: str) -> float:
    try:
        found = top_eigenvalue(
            net.model(norm, seed), LOSS, batch, "ggn", mode, tol=0.01, seed=seed, vectors=False
        )
    except NormscopeError:  # a mode that a layer does not have
        return math.nan
    return found.value
