"""The Hessian of a network that is a chain of layers, applied layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normscope.curvature.batch_product import BatchProduct
from normscope.curvature.chain import ChainJacobian, alone
from normscope.curvature.chain_links import Link, Pair
from normscope.curvature.output_hessian import OutputHessian
from normscope.problem.diagnose import check_finite

__all__ = ["ChainHessian"]


class ChainHessian(BatchProduct):
    r"""The Hessian of a loss of a chain's output, times vectors, without any graph.

    The gradient is what the cotangent of the loss leaves at each layer on its way down. Its
    derivative along a vector v is taken layer by layer: the tangents of all layers' inputs go up,
    the tangents of all cotangents come down, two passes' work for each (the R-operator of
    Pearlmutter, 1994).

    .. math:: \dot\delta_f = (\nabla^2_f L)\, J v, \qquad
        H v = \frac{d}{dt} \sum_l \Bigl(\frac{\partial y_l}{\partial\theta_l}\Bigr)^{\!\top}
        \delta_l \,\Big|_{\theta + t v}

    Args:
        chain: read with ``curved``, so that its links know their second derivatives.
        gradient: of the loss in the output.
        metric: the loss's Hessian in the output.
    """

    def __init__(self, chain: ChainJacobian, gradient: Tensor, metric: OutputHessian) -> None:
        self._links, self._layout = chain.links, chain.layout
        self._metric = metric
        # memory of the last product, for the next: fresh pages cost more than their contents
        self._kept: dict[int, Tensor] = {}
        with alone():
            self._cotangents = _cotangents(self._links, gradient)

    def times(self, vector: Tensor) -> Tensor:
        """The Hessian times a flat vector."""
        with alone():
            directions = self._directions(vector)
            tangents, moved = self._tangents(directions)
            found: dict[str | None, Tensor | None] = {}
            below: Tensor | None = self._metric.times(moved)
            for place in reversed(range(len(self._links))):
                link = self._links[place]
                assert below is not None
                below, gradients = link.moved_down(
                    below, self._cotangents[place], tangents[place], directions[place], place > 0
                )
                found |= zip(link.names, gradients, strict=True)
            product = self._layout.join([found.get(name) for name in self._layout.names])
        check_finite(product, "the product of the Hessian and a vector")
        return product

    def _directions(self, vector: Tensor) -> list[Pair]:
        pieces = self._layout.split(vector.detach())
        named: dict[str | None, Tensor] = dict(zip(self._layout.names, pieces, strict=True))
        return [(named.get(weight), named.get(bias)) for weight, bias in self._names()]

    def _names(self) -> list[tuple[str | None, str | None]]:
        return [link.names for link in self._links]

    def _tangents(self, directions: Sequence[Pair]) -> tuple[list[Tensor | None], Tensor]:
        """The tangent of every link's input, and that of the output."""
        tangent: Tensor | None = None
        tangents: list[Tensor | None] = []
        for place, link in enumerate(self._links):
            tangents.append(self._held(place, tangent) if link.overwrites else tangent)
            tangent = link.up(tangent, directions[place])
        assert tangent is not None
        check_finite(tangent, "the derivative of the output")
        return tangents, tangent

    def _held(self, place: int, tangent: Tensor | None) -> Tensor | None:
        """A copy of what the link will overwrite."""
        if tangent is None:
            return None
        kept = self._kept.get(place)
        self._kept[place] = tangent.clone() if kept is None else kept.copy_(tangent)
        return self._kept[place]


def _cotangents(links: Sequence[Link], gradient: Tensor) -> list[Tensor]:
    """What the gradient of the loss in the output is at each link's output."""
    cotangents: list[Tensor] = []
    delta = gradient.detach()
    for link in reversed(links):
        check_finite(delta, "the gradient")
        cotangents.append(delta)
        if link is not links[0]:
            delta = link.below(delta.clone()).clone()  # a link may use its memory again
    return cotangents[::-1]
