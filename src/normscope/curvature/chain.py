"""The Jacobian of a network that is a chain of layers, applied layer by layer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from normscope.curvature.chain_check import check_derivatives, check_values
from normscope.curvature.chain_copy import private_copy
from normscope.curvature.chain_links import Link, OuterProduct, Trace
from normscope.curvature.chain_read import READERS, Scene, links_of
from normscope.curvature.chain_steps import NotAChainError, Step, steps_of
from normscope.curvature.linearization import Linearization
from normscope.problem.diagnose import check_finite
from normscope.problem.isolation import MODEL_LOCK, isolated
from normscope.problem.parameters import ParameterLayout

__all__ = ["ChainJacobian", "alone"]

_LOGGER = logging.getLogger(__name__)
_DTYPES = (torch.float32, torch.float64)


class ChainJacobian(Linearization):
    r"""The Jacobian of a chain of linear layers, convolutions, batch norms and activations.

    J^T u goes down the layers and leaves at each one the gradient of its parameters; J v goes up
    and collects at each layer what the parameters' tangent adds. For J J^T u the two meet layer by
    layer, and no vector over all parameters is ever made.

    Args:
        links: the derivatives of the layers from the first with a parameter on.
        output: the network's.
        layout: the parameters differentiated by.

    >>> from normscope.problem.parameters import parameter_layout
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> inputs = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    >>> jacobian = ChainJacobian.read(model, inputs, "train", parameter_layout(model))
    >>> jacobian.gram(torch.tensor([[1.0], [0.0]]))  # the first column of inputs @ inputs.T
    tensor([[9.],
            [3.]])
    """

    holds_gradients = False

    def __init__(self, links: Sequence[Link], output: Tensor, layout: ParameterLayout) -> None:
        super().__init__(output.shape, output.dtype)
        self.output = output
        self.links = tuple(links)
        self.layout = layout

    @classmethod
    def read(
        cls,
        model: nn.Module,
        inputs: Tensor,
        mode: str,
        layout: ParameterLayout,
        point: Mapping[str, Tensor] | None = None,
        curved: bool = False,
    ) -> ChainJacobian | None:
        """The Jacobian of a model on a batch, if the model is a chain of layers known here.

        The model is not run, nor changed: a copy that shares its tensors is. What was read is
        checked against the copy's own forward pass on a few samples.

        Args:
            model: any module.
            inputs: the batch's inputs, samples first.
            mode: "train", "frozen" or "eval".
            layout: the parameters to differentiate by.
            point: parameters and buffers by qualified name; None for the model's own.
            curved: whether second derivatives will be asked for.

        Returns:
            The Jacobian; None if anything in the model is not known to be right.
        """
        with alone(), isolated(model):
            try:
                tensors = _tensors_of(model, inputs, point)
                copy = private_copy(model, mode != "eval", tensors)
                steps, certain = steps_of(copy, READERS)
                scene = Scene(mode, tensors, frozenset(layout.names), curved)
                inputs = inputs.detach()
                check_values(copy, steps, inputs, scene)
                if not certain:
                    check_derivatives(model, inputs, scene, partial(_gradients, steps))
                links, output = links_of(steps, inputs, scene)
                if not links or output.dim() == 0 or len(output) != len(inputs):
                    raise NotAChainError("its output is not one row of values per sample")
            except NotAChainError as reason:
                _LOGGER.debug("%s is not a chain: %s", type(model).__name__, reason)
                return None
        return cls(links, output, layout)

    def pull_back(self, cotangent: Tensor) -> Tensor:
        """J^T u, a flat parameter vector."""
        with alone():
            return self._joined(_down(self.links, cotangent))

    def push_forward(self, vector: Tensor) -> Tensor:
        """J v, in the shape of the output."""
        with alone():
            pieces = self.layout.split(vector.detach())
            named: dict[str | None, Tensor] = dict(zip(self.layout.names, pieces, strict=True))
            traces = [
                (named.get(weight), named.get(bias))
                for weight, bias in (link.names for link in self.links)
            ]
            return _up(self.links, traces)

    def gram(self, cotangent: Tensor) -> Tensor:
        """J J^T u, in the shape of the output."""
        return self.gram_with(self, cotangent)

    def gram_and_pulled(self, cotangent: Tensor) -> tuple[Tensor, Tensor | None]:
        """J J^T u, and J^T u if no layer left its gradient unmultiplied."""
        with alone():
            traces = _down(self.links, cotangent)
            whole = not any(isinstance(trace, OuterProduct) for trace in traces)
            pulled = self._joined(traces) if whole else None
            return _up(self.links, traces), pulled

    def gram_with(self, other: Linearization, cotangent: Tensor) -> Tensor:
        """J K^T u, in the shape of this output, for the Jacobian K of the same model elsewhere."""
        if not isinstance(other, ChainJacobian):
            return super().gram_with(other, cotangent)
        with alone():
            return _up(self.links, _down(other.links, cotangent))

    def inner_products(self, cotangents: Sequence[Tensor]) -> Tensor:
        """The inner products of all J^T u; the gradients of one layer are held at a time."""
        with alone():
            deltas = [cotangent.detach().clone() for cotangent in cotangents]
            total = torch.zeros(len(deltas), len(deltas), dtype=torch.float64)
            for link in reversed(self.links):
                traces = []
                for place, delta in enumerate(deltas):
                    below, trace = link.down(delta, to_input=link is not self.links[0])
                    traces.append(trace)
                    if below is not None:
                        deltas[place] = below.clone()  # the link may use its memory again
                total += link.inner_products(traces)
        return total

    def _joined(self, traces: Sequence[Trace]) -> Tensor:
        found = _pulled_back(self.links, traces)
        return self.layout.join([found.get(name) for name in self.layout.names])


def _down(links: Sequence[Link], cotangent: Tensor) -> list[Trace]:
    """What a cotangent of the output leaves at each link."""
    delta: Tensor | None = cotangent.detach().clone()
    traces: list[Trace] = []
    for link in reversed(links):
        assert delta is not None
        delta, trace = link.down(delta, to_input=link is not links[0])
        traces.append(trace)
    return traces[::-1]


def _up(links: Sequence[Link], traces: Sequence[Trace]) -> Tensor:
    """The tangent of the output for a direction at each link."""
    tangent: Tensor | None = None
    for link, trace in zip(links, traces, strict=True):
        tangent = link.up(tangent, trace)
    assert tangent is not None
    check_finite(tangent, "the derivative of the output")
    return tangent.clone()  # the last link may use its memory again


def _pulled_back(links: Sequence[Link], traces: Sequence[Trace]) -> dict[str | None, Tensor | None]:
    """Gradients by name."""
    found: dict[str | None, Tensor | None] = {}
    for link, trace in zip(links, traces, strict=True):
        found |= zip(link.names, link.gradients(trace), strict=True)
    return found


def _gradients(
    steps: list[Step], inputs: Tensor, scene: Scene, cotangent: Tensor
) -> list[Tensor | None]:
    """The gradients that a chain gives on other inputs, in the order of their names."""
    links, _ = links_of(steps, inputs, scene)
    found = _pulled_back(links, _down(links, cotangent))
    return [found.get(name) for name in sorted(scene.wanted)]


@contextmanager
def alone() -> Iterator[None]:
    """To be open while a model is read or links work: no graph is recorded.

    Links write into memory of their own, and a model that is being read must not be set up for a
    measurement by another thread meanwhile.
    """
    with MODEL_LOCK, torch.inference_mode(False), torch.no_grad():
        yield


def _tensors_of(
    model: nn.Module, inputs: Tensor, point: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """Parameters and buffers by name, if all are plain tensors like the inputs."""
    own: dict[str, Tensor] = dict([*model.named_parameters(), *model.named_buffers()])
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    if len([*parameters, *buffers]) > len(own):
        raise NotAChainError("modules or weights are shared")
    tensors = {name: tensor.detach() for name, tensor in own.items()} | dict(point or {})
    floats = [inputs, *(t for t in tensors.values() if t.is_floating_point() or t.is_complex())]
    plain = all(type(tensor) is Tensor for tensor in floats)
    if not plain or inputs.dtype not in _DTYPES or torch.is_autocast_enabled(inputs.device.type):
        raise NotAChainError("its tensors are not of float32 or float64")
    if len({(tensor.dtype, tensor.device) for tensor in floats}) > 1:
        raise NotAChainError("its tensors are not all like the inputs")
    return tensors
