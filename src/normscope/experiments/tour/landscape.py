"""One short training watched by the scope: the landscape along the gradient, covariate shift."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.santurkar2018.trainings import seeded
from normscope.experiments.tour.net import LOSS, Net
from normscope.probes import Scope
from normscope.training import sgd, train

__all__ = ["PROBES", "landscape"]

PROBES = ("loss_variation", "gradient_predictiveness", "effective_smoothness", "covariate_shift")
_KEPT = (
    *("loss", "ray_loss", "loss_low", "loss_high"),
    *("gradient_distance", "gradient_distance_low", "gradient_distance_high"),
    *("effective_smoothness", "shift_distance", "shift_cosine"),
)


def landscape(net: Net, norm: str, seed: int, rate: float, steps: int, every: int) -> xr.Dataset:
    """Train once under the scope.

    Reference: santurkar2018, Figure 4 and Definition 2.1.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights, order of the data and noise.
        rate: of SGD; the ray is looked at in multiples of it.
        steps: updates.
        every: steps from one measurement to the next.

    Returns:
        The probes' variables over step, distance and layer; not a number after a divergence.
    """
    problem = net.problem(norm, seed)
    optimizer = sgd(rate, net.momentum)(problem.model.parameters())
    scope = Scope(problem.model, LOSS, optimizer, probes=PROBES, every=every, seed=seed)
    with seeded(seed), scope:
        for step in train(problem, optimizer, steps, net.batch_size, seed):
            scope.step(*step.batch)
    found = scope.results[list(_KEPT)].drop_vars("seed", errors="ignore")
    return found.reindex(step=range(0, steps, every)).drop_attrs(deep=False)
