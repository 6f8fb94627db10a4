"""The theorems on the batch normalizations of the net itself, exact and as printed."""

from __future__ import annotations

import copy

import numpy as np
import xarray as xr
from torch import nn

from normscope.experiments.tour.net import LOSS, Net
from normscope.layers.kinds import norm_layers
from normscope.theorems import check_layer
from normscope.theorems.verdict import Verdict
from normscope.training import fit, sgd

__all__ = ["statements"]

_VANISHING = 1e-14  # an eps too small to matter
_NOTHING = 1e-30


def statements(net: Net, seed: int, rate: float, steps: int, samples: int) -> xr.Dataset:
    """Every statement about a layer on every layer of the net with BatchNorm, after some training.

    The printed forms take eps for zero, and are checked on a copy of the net whose eps vanishes.

    Reference: santurkar2018, Section 4 and Appendix C.

    Args:
        net: the network.
        seed: of weights and order of the data.
        rate: of SGD.
        steps: updates before the check.
        samples: of the batch that it is checked on.

    Returns:
        Over ``verdict``: the ``statement``, its ``form`` and ``kind``, the ``norm_layer``, both
        sides (``left``, ``right``), ``slack``, and whether it is ``refuted``.
    """
    problem = net.problem("batch", seed)
    fit(problem, sgd(rate, net.momentum), steps, net.batch_size, seed)
    batch = net.batch(samples)
    models = {"exact": problem.model, "printed": _without_eps(problem.model)}
    found = [
        verdict
        for form, model in models.items()
        for layer in norm_layers(model)
        for verdict in check_layer(model, LOSS, batch, layer, form=form, seed=seed)
    ]
    return _table([verdict for verdict in found if _tells(verdict)])


def _tells(verdict: Verdict) -> bool:
    """Whether a side is more than nothing: a unit that died in training says nothing."""
    row = verdict.to_dict()
    return bool(max(abs(row["lhs"]), abs(row["rhs"])) > _NOTHING)


def _without_eps(model: nn.Module) -> nn.Module:
    """A copy as the printed forms suppose it."""
    copied = copy.deepcopy(model)
    for layer in norm_layers(copied).values():
        layer.eps = _VANISHING  # type: ignore[assignment]  # torch types attributes as tensors
    return copied


def _table(verdicts: list[Verdict]) -> xr.Dataset:
    rows = [{**each.to_dict(), "statement": each.label} for each in verdicts]
    texts = {
        name: ("verdict", [str(row[own]) for row in rows])
        for name, own in {
            "statement": "statement",
            "form": "form",
            "kind": "kind",
            "norm_layer": "layer",
        }.items()
    }
    numbers = {
        name: ("verdict", [float(row[own]) for row in rows])
        for name, own in {"left": "lhs", "right": "rhs", "slack": "slack"}.items()
    }
    refuted = ("verdict", [int(each.refuted) for each in verdicts])
    return xr.Dataset(
        {**texts, **numbers, "refuted": refuted}, coords={"verdict": np.arange(len(rows))}
    )
