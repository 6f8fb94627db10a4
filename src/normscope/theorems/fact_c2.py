"""Fact C.2: the Jacobian of the normalized outputs."""

from __future__ import annotations

import torch

from normscope.theorems.layer_case import LayerCase
from normscope.theorems.statement import Sides, statement


@statement(forms=("exact", "printed"), needs=("y",))
def fact_c2(case: LayerCase, form: str) -> Sides:
    r"""The Jacobian of the normalized outputs is a scaled projection, up to eps.

    .. math:: \frac{\partial \hat y^{(b)}}{\partial y^{(k)}} = \frac1s \left(\delta_{bk} - \frac1m
        - \frac1m \hat y^{(b)} \hat y^{(k)}\right)

    Printed: the same with eps = 0 in s and in the normalized output, where it is a projection
    divided by s. With eps in both, as in the layer, it is true for any eps.

    Reference: santurkar2018, Fact C.2, Eq. (1).

    Args:
        case: left is the Jacobian by autograd, as a matrix or times probe vectors; right the
            closed form.
        form: "exact" or "printed".

    Returns:
        The sides, an identity of matrices.
    """
    units = case.units if form == "exact" else case.units.without_eps()
    probes = case.probes
    if probes is None:
        probes = torch.eye(units.batch_size, dtype=units.y.dtype).unsqueeze(0)
    columns = [units.jacobian_times(probe) for probe in probes.unbind(1)]
    size = probes.abs().amax((-1, -2)) / case.units.scale
    return Sides("identity", case.jacobian(probes), torch.stack(columns, 1), size)
