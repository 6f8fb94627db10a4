"""Observe a norm layer of a network: its inputs and outputs, and derivatives by both."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, StateError
from normscope.problem.batch import move_batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.theorems.layer_case import LayerCase, Product, Units

_PROBES = 4
_AGREEMENT = 1e-3  # relative difference of outputs and formula, far above rounding errors
_ROUNDINGS = 4  # or as many units in the last place, for coarse types
_KEPT = 4  # products; statements ask again within that many


@dataclass(frozen=True, eq=False)
class Observation:
    """A layer's inputs y and outputs z on one batch, with the graph from y over z to the loss.

    Valid only inside `observe`.

    Args:
        layer: the batch normalization.
        y: its inputs, a leaf of the graph used by the layer only, (batch, channels, ...).
        z: its outputs.
        g: the gradient of the loss by z, with its graph.
        d: the gradient of the loss by y, with its graph.
    """

    layer: nn.Module
    y: Tensor
    z: Tensor
    g: Tensor
    d: Tensor

    def whole(self, bound: float) -> LayerCase:
        """Return all units, with the Hessians of the whole layer, which couple them."""
        return self._case(None, bound, None, 0)

    def apart(self, chosen: Sequence[int], bound: float, seed: int, dense_limit: int) -> LayerCase:
        """Return some units, each with its diagonal block of the Hessians."""
        generator = torch.Generator().manual_seed(seed)
        values = self.y.numel() // self.y.shape[1]
        shape = (len(chosen), _PROBES, values)
        probes = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self._case(list(chosen), bound, probes, dense_limit)

    def _case(
        self, chosen: list[int] | None, bound: float, probes: Tensor | None, dense_limit: int
    ) -> LayerCase:
        y, g, d = (self._by_unit(each.detach()) for each in (self.y, self.g, self.d))
        gamma = self._gamma(len(y))
        index = torch.arange(len(y)) if chosen is None else torch.tensor(chosen)

        def jacobian(vectors: Tensor) -> Tensor:
            everywhere = torch.zeros(vectors.shape[1], *y.shape, dtype=torch.float64)
            everywhere[:, index] = vectors.transpose(0, 1)
            pushed = [self._backward(self.z, self.y, each)[index] for each in everywhere]
            return torch.stack(pushed, 1) / gamma[index][:, None, None]

        return LayerCase(
            Units(y, g, gamma, float(self.eps)).select(index),
            d[index],
            jacobian,
            _cached(self._product(self.g, self.z, chosen)),
            _cached(self._product(self.d, self.y, chosen)),
            bound,
            probes,
            dense_limit,
        )

    @property
    def eps(self) -> float:
        """The number that the layer adds to the variance."""
        eps: float = getattr(self.layer, "eps")  # noqa: B009 - a module's attribute has no type
        return eps

    def _gamma(self, units: int) -> Tensor:
        weight = getattr(self.layer, "weight", None)
        if weight is None:
            return torch.ones(units, dtype=torch.float64)
        return torch.as_tensor(weight.detach(), dtype=torch.float64, device="cpu")

    def check_formula(self) -> None:
        """Check that the layer normalizes by the statistics of its batch.

        Raises:
            InputError: if a value is infinite or NaN.
            StateError: if the outputs are not the normalized inputs, scaled and shifted.
        """
        parts = {"inputs": self.y, "outputs": self.z, "gradients": self.g}
        for what, values in parts.items():
            if not torch.isfinite(values).all():
                raise InputError(
                    f"the layer's {what} hold values that are infinite or NaN; check the data, the "
                    "weights and the loss."
                )
        y, z = self._by_unit(self.y.detach()), self._by_unit(self.z.detach())
        shift = getattr(self.layer, "bias", None)
        units = Units(y, torch.zeros_like(y), self._gamma(len(y)), self.eps)
        expected = units.gamma.unsqueeze(-1) * units.y_hat
        if shift is not None:
            expected = expected + shift.detach().cpu().double().unsqueeze(-1)
        allowed = max(_AGREEMENT, _ROUNDINGS * torch.finfo(self.z.dtype).eps)
        if not (z - expected).norm() <= allowed * expected.norm().clamp(min=1e-30):
            raise StateError(
                f"the layer ({type(self.layer).__name__}) does not normalize by the statistics of "
                "its batch: it has another formula, or the model sets it to eval mode."
            )

    def _product(self, gradient: Tensor, by: Tensor, chosen: list[int] | None) -> Product:
        if chosen is None:
            return lambda vectors: self._backward(gradient, by, vectors)

        def blocks(vectors: Tensor) -> Tensor:
            rows = []
            for row, unit in enumerate(chosen):
                alone = torch.zeros(by.shape[1], vectors.shape[1], dtype=vectors.dtype)
                alone[unit] = vectors[row]
                rows.append(self._backward(gradient, by, alone)[unit])
            return torch.stack(rows)

        return blocks

    def _backward(self, of: Tensor, by: Tensor, vectors: Tensor) -> Tensor:
        """Return vectors, in rows of units, times the derivative of one tensor by another."""
        if not of.requires_grad:
            return torch.zeros_like(vectors)
        (found,) = torch.autograd.grad(
            of, by, self._by_sample(vectors), retain_graph=True, allow_unused=True
        )
        return torch.zeros_like(vectors) if found is None else self._by_unit(found)

    def _by_unit(self, tensor: Tensor) -> Tensor:
        """Reshape (batch, channels, ...) to (channels, batch * positions), float64 on the CPU."""
        return tensor.transpose(0, 1).reshape(tensor.shape[1], -1).to("cpu", torch.float64)

    def _by_sample(self, rows: Tensor) -> Tensor:
        """Reshape (channels, batch * positions) to (batch, channels, ...), as in the layer."""
        y = self.y
        shaped = rows.reshape(y.shape[1], y.shape[0], *y.shape[2:]).transpose(0, 1)
        return shaped.to(y.device, y.dtype)


@contextmanager
def observe(
    problem: Problem, name: str, layer: nn.Module, dtype: torch.dtype | None, seed: int
) -> Iterator[Observation]:
    """Run the network on its first batch in train mode and observe one layer.

    The model is not changed.

    Args:
        problem: model, loss and data.
        name: of the layer.
        layer: the layer.
        dtype: to compute in; None for that of the model.
        seed: of dropout and noise.

    Yields:
        The observation.

    Raises:
        StateError: if the layer is not run exactly once, or the loss does not depend on it.
    """
    users = "forward" in layer.__dict__  # set by the user on this layer
    evaluator = Evaluator(problem, parameter_layout(problem.model), "train", seed)
    _, batch = next(evaluator.batches())
    if dtype is not None:
        batch = move_batch(batch, problem.device, dtype)
        for key, tensor in evaluator.point.items():
            evaluator.point[key] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    calls: list[tuple[Tensor, Tensor]] = []
    weights = tuple(evaluator.point[name] for name in evaluator.layout.names)
    # weights are constants, since every product would compute their gradients too
    with evaluator.isolated(weights):
        if not (users or isinstance(layer, nn.SyncBatchNorm)):
            layer.__dict__.pop("forward", None)  # test the derivatives of the layer itself
        with _record_calls(layer, calls):
            loss = problem.loss_on(batch)
        if len(calls) != 1:
            how = "does not run" if not calls else f"runs {len(calls)} times"
            raise StateError(
                f"the layer {name!r} {how} in one forward pass; the statements are about one run."
            )
        y, z = calls[0]
        observation = _differentiate(loss, y, z, layer, name)
        observation.check_formula()
        yield observation


def _differentiate(loss: Tensor, y: Tensor, z: Tensor, layer: nn.Module, name: str) -> Observation:
    found: Callable[..., tuple[Any, ...]] = torch.autograd.grad
    g = d = None
    if loss.requires_grad:  # by the layer's input alone
        g, d = found(loss, (z, y), create_graph=True, allow_unused=True)
    if g is None or d is None:
        raise StateError(f"the loss does not depend on the layer {name!r}.")
    return Observation(layer, y, z, g, d)


@contextmanager
def _record_calls(layer: nn.Module, calls: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Give the layer a leaf tensor as input, and record it with the output."""
    inputs: list[Tensor] = []

    def enter(
        module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = arguments or tuple(options.values())  # a norm layer takes only its input
        # a leaf, so that other users of the values, such as a shortcut, do not count
        inputs.append(given[0].detach().requires_grad_())
        return (inputs[-1], *given[1:]), {}

    def leave(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        calls.append((inputs[-1], output))
        return output.clone()  # the next module may overwrite it in place

    handles = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave, prepend=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cached(product: Product) -> Product:
    """Return a linear map that caches its last few results, which must not be changed.

    The parts of a statement share terms, so that they ask for products of the same vectors.

    >>> asked = []
    >>> twice = _cached(lambda vector: asked.append(vector) or 2 * vector)
    >>> [float(twice(torch.tensor(each))) for each in (1.0, 3.0, 1.0)], len(asked)
    ([2.0, 6.0, 2.0], 2)
    """
    kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=_KEPT)

    def answer(vectors: Tensor) -> Tensor:
        for known, found in kept:
            if torch.equal(known, vectors):
                return found
        kept.append((vectors, product(vectors)))
        return kept[-1][1]

    return answer
