"""Internal covariate shift: how the update of earlier layers changes a layer's gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from normscope.errors import StateError
from normscope.probes.gradients import difference_and_cosine
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext
    from normscope.probes.execution import Layer


@PROBES.register(name="covariate_shift")
class CovariateShift(Probe):
    r"""Change of each layer's gradient when everything that runs before it is updated.

    .. math:: G_i = \nabla_{W_i} L(W_1, \dots, W_k), \qquad
        G'_i = \nabla_{W_i} L(W'_1, \dots, W'_{i-1}, W_i, \dots, W_k)

    on the same batch, where W' are the parameters after the optimizer's own update by this batch's
    gradient. Measures ``shift_distance``, the l2 norm of G_i - G'_i, and ``shift_cosine``, the
    cosine of the angle between the two. Scales and shifts of norm layers are updated too if they
    run before. A layer runs at the first use of its parameters, and a tied weight belongs to its
    first use. NaN for a layer that is frozen or does not run, or whose use cannot be observed
    (with one warning).

    Reference: santurkar2018, Definition 2.1. Notation: W = parameters of a layer, G = gradient.

    Args:
        every: minimum number of training steps between two measurements.
    """

    needs_learning_rate = True
    needs_update = True

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return {"shift_distance": ("layer",), "shift_cosine": ("layer",)}

    def measure(self, context: StepContext) -> Values:
        """Return l2 difference and cosine for each layer: at most one pass per layer."""
        try:
            updated = context.updated_parameters
        except StateError as error:
            return self.missing(self.variables, str(error))
        hidden = [layer.name for layer in context.layers if _is_hidden(context, layer)]
        if hidden:
            reason = f"where {', '.join(map(repr, hidden))} ran cannot be seen."
            self.missing(self.variables, reason)
        shifts = [_shift(context, layer, updated) for layer in context.layers]
        distances, cosines = zip(*shifts, strict=True) if shifts else ((), ())
        return {"shift_distance": np.array(distances), "shift_cosine": np.array(cosines)}

    def cost(self, layers: int, points: int) -> Cost:
        """Return at most one pass for each layer after the first."""
        passes = max(layers - 1, 0)
        return Cost(passes, "at most one for each layer after the first", exact=False)


def _is_hidden(context: StepContext, layer: Layer) -> bool:
    return layer.first_use is None and any(name in context.gradient for name in layer.parameters)


def _shift(
    context: StepContext, layer: Layer, updated: Mapping[str, Tensor]
) -> tuple[float, float]:
    own = [name for name in layer.parameters if name in context.gradient]
    if not own or layer.first_use is None:
        return math.nan, math.nan
    position, uses = layer.first_use, context.order.first_uses
    before = {n: t for n, t in updated.items() if uses.get(n, position) < position}
    here = {name: context.gradient[name] for name in own}
    if not before:
        return difference_and_cosine(here, here)
    tensors = context.copy_parameters(before)
    for name in own:
        tensors[name].requires_grad_()
    return difference_and_cosine(here, context.batch_loss.gradient(tensors))
