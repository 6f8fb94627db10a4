"""Internal covariate shift: what the update of the layers before does to a layer's gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normscope.errors import StateError
from normscope.probes.comparison import difference_and_cosine
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values
from normscope.probes.update import updated_parameters

if TYPE_CHECKING:
    from normscope.probes.execution import Layer
    from normscope.probes.moment import Moment

__all__ = ["CovariateShift"]


@PROBES.register(name="covariate_shift")
class CovariateShift(Probe):
    r"""Change of each layer's gradient when everything that runs before it takes its update.

    .. math:: G_i = \nabla_{W_i} L(W_1, \dots, W_k), \qquad
        G'_i = \nabla_{W_i} L(W'_1, \dots, W'_{i-1}, W_i, \dots, W_k)

    on the same batch, W' being the parameters after the optimizer's own update by this batch's
    gradient. Measures ``shift_distance``, the l2 norm of G_i - G'_i, and ``shift_cosine``, the
    cosine of the angle between the two. Scales and shifts of norm layers count as what runs before
    if they do. A layer's place is that of the first use of its parameters, and a weight used in
    several places belongs to the first. A layer that is frozen or does not run has NaN, and so has
    one whose use cannot be seen (with one warning).

    Reference: santurkar2018, Definition 2.1. Notation: W = parameters of a layer, G = gradient.

    Args:
        every: at least so many training steps from one measurement to the next.
    """

    name = "covariate_shift"
    needs_learning_rate = True
    needs_update = True

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        return {"shift_distance": ("layer",), "shift_cosine": ("layer",)}

    def measure(self, moment: Moment) -> Values:
        """l2 difference and cosine for each layer: one pass for each that has any before it."""
        try:
            updated = updated_parameters(moment)
        except StateError as error:
            return self.without(self.variables, str(error))
        places = moment.order.parameter_places()
        hidden = [layer.name for layer in moment.layers if _is_hidden(moment, layer)]
        if hidden:
            reason = f"where {', '.join(map(repr, hidden))} ran cannot be seen."
            self.without(self.variables, reason)
        shifts = [_shift(moment, layer, updated, places) for layer in moment.layers]
        distances, cosines = zip(*shifts, strict=True) if shifts else ((), ())
        return {"shift_distance": np.array(distances), "shift_cosine": np.array(cosines)}

    def cost(self, layers: int, points: int) -> Cost:
        """At most one pass for each layer after the first."""
        passes = max(layers - 1, 0)
        return Cost(passes, "at most one for each layer after the first", exact=False)


def _is_hidden(moment: Moment, layer: Layer) -> bool:
    return layer.place is None and any(name in moment.gradient for name in layer.parameters)


def _shift(
    moment: Moment, layer: Layer, updated: Mapping[str, Tensor], places: Mapping[str, int]
) -> tuple[float, float]:
    own = [name for name in layer.parameters if name in moment.gradient]
    if not own or layer.place is None:
        return math.nan, math.nan
    before = {n: t for n, t in updated.items() if places.get(n, layer.place) < layer.place}
    here = {name: moment.gradient[name] for name in own}
    if not before:
        return difference_and_cosine(here, here)
    tensors = moment.at_parameters(before)
    leaves = {name: tensors[name].requires_grad_() for name in own}
    with torch.inference_mode(False):
        _, there = moment.passes.gradients(tensors, leaves)
    return difference_and_cosine(here, there)
