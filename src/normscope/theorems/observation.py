"""Observe a norm layer of a network: its inputs and outputs, and derivatives by both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscope.curvature.precision import without_autocast
from normscope.errors import InputError, StateError
from normscope.problem.batch import move_batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.theorems.layer_case import ROUNDING, LayerCase, Units

_PROBES = 4
_AGREEMENT = 1e-3  # relative difference of outputs and formula, far above rounding errors
_ROUNDINGS = 4  # or as many units in the last place, for coarse types


Multiply = Callable[[list[int], Tensor], Tensor]
"""Takes the numbers of some units and a vector for each, (units, batch), to the products."""


@dataclass(frozen=True, eq=False)
class Observation:
    """A layer's inputs y and outputs z on one batch, and the loss as a function of z.

    The graph is in two parts: from y to z, the layer, and from a copy of z to the loss, the network
    after it, which may have another dtype. Valid only inside `observe`.

    Args:
        layer: the batch normalization.
        y: its inputs, a leaf used by the layer only, (batch, channels, ...).
        z: its outputs, with their graph.
        output: the outputs as the network takes them, a leaf.
        gradient: the gradient of the loss by ``output``, with its graph.
        count: called before each product with the Hessian of the loss by ``output``.
    """

    layer: nn.Module
    y: Tensor
    z: Tensor
    output: Tensor
    gradient: Tensor
    count: Callable[[], None]

    def whole(self, bound: float) -> LayerCase:
        """Return all units, with the Hessians of the whole layer, which couple them."""
        return self._case(list(range(self.y.shape[1])), bound, None, 0, coupled=True)

    def apart(self, chosen: Sequence[int], bound: float, seed: int, dense_limit: int) -> LayerCase:
        """Return some units, each with its diagonal block of the Hessians."""
        generator = torch.Generator().manual_seed(seed)
        values = self.y.numel() // self.y.shape[1]
        shape = (len(chosen), _PROBES, values)
        probes = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self._case(list(chosen), bound, probes, dense_limit, coupled=False)

    def _case(
        self,
        chosen: list[int],
        bound: float,
        probes: Tensor | None,
        dense_limit: int,
        coupled: bool,
    ) -> LayerCase:
        y, g = (self._by_unit(each.detach(), chosen) for each in (self.y, self.gradient))
        gamma = self._gamma(self.y.shape[1])[chosen]
        hessian = Products(lambda rows, vectors: self._hessian(chosen, rows, vectors), coupled)
        g_leaf = self.gradient.detach().to(self.y.dtype).requires_grad_()
        find: Callable[..., tuple[Any, ...]] = torch.autograd.grad
        (d,) = find(self.z, self.y, g_leaf, create_graph=True)

        def pull_back(vectors: Tensor) -> Tensor:
            (found,) = find(self.z, self.y, self._at(chosen, vectors), retain_graph=True)
            return self._by_unit(found, chosen)

        def jacobian(vectors: Tensor) -> Tensor:
            pulled = [pull_back(each) for each in vectors.unbind(1)]
            return torch.stack(pulled, 1) / gamma[:, None, None]

        def curvature(vectors: Tensor) -> Tensor:
            along = self._at(chosen, vectors)
            options = {"retain_graph": True, "materialize_grads": True}
            bent, pushed = find(d, (self.y, g_leaf), along, **options)
            curved = hessian(self._by_unit(pushed, chosen))
            return self._by_unit(bent, chosen) + pull_back(curved)

        return LayerCase(
            Units(y, g, gamma, float(self.eps)),
            self._by_unit(d.detach(), chosen),
            jacobian,
            hessian,
            curvature,
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
        parts = {"inputs": self.y, "outputs": self.z, "gradients": self.gradient}
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

    def _hessian(self, chosen: list[int], rows: list[int], vectors: Tensor) -> Tensor:
        """Return vectors of some chosen units times the Hessian by the outputs, on these units."""
        self.count()
        units = [chosen[row] for row in rows]
        if not self.gradient.requires_grad:
            return torch.zeros_like(vectors)
        (found,) = torch.autograd.grad(
            self.gradient,
            self.output,
            self._at(units, vectors).to(self.output.dtype),
            retain_graph=True,
            materialize_grads=True,
        )
        return self._by_unit(found, units)

    def _at(self, units: list[int], vectors: Tensor) -> Tensor:
        """Return a tensor like the inputs that has some units' values, and is zero elsewhere."""
        y, batch, *positions = self.y, len(self.y), *self.y.shape[2:]
        everywhere = torch.zeros_like(y)
        shaped = vectors.reshape(len(units), batch, *positions).transpose(0, 1)
        everywhere[:, units] = shaped.to(y.device, y.dtype)
        return everywhere

    def _by_unit(self, tensor: Tensor, units: list[int] | None = None) -> Tensor:
        """Reshape (batch, channels, ...) to (units, batch * positions), float64 on the CPU."""
        chosen = tensor if units is None else tensor[:, units]
        return chosen.transpose(0, 1).reshape(chosen.shape[1], -1).to("cpu", torch.float64)


@contextmanager
def observe(
    problem: Problem,
    name: str,
    layer: nn.Module,
    dtype: torch.dtype | None,
    seed: int,
    count: Callable[[], None] = lambda: None,
) -> Iterator[Observation]:
    """Run the network on its first batch in train mode and observe one layer.

    The model is not changed.

    Args:
        problem: model, loss and data.
        name: of the layer.
        layer: the layer.
        dtype: of the layer; None for that of the model. The network around it has the model's,
            at least float32, which is enough: the statements are about any loss of the outputs.
        seed: of dropout and noise.
        count: called before each product with the Hessian by the layer's outputs.

    Yields:
        The observation.

    Raises:
        StateError: if the layer is not run exactly once, or the loss does not depend on it.
    """
    users = "forward" in layer.__dict__  # set by the user on this layer
    evaluator = Evaluator(problem, parameter_layout(problem.model), "train", seed)
    _, batch = next(evaluator.batches())
    if dtype is not None:
        wide = torch.promote_types(problem.dtype or dtype, torch.float32)
        batch = move_batch(batch, problem.device, wide)
        evaluator.point.update({key: _cast(each, wide) for key, each in evaluator.point.items()})
    calls: list[_Call] = []
    weights = tuple(evaluator.point[name] for name in evaluator.layout.names)
    # weights are constants, since every product would compute their gradients too
    with without_autocast(), evaluator.isolated(weights):
        if not (users or isinstance(layer, nn.SyncBatchNorm)):
            layer.__dict__.pop("forward", None)  # test the derivatives of the layer itself
        if dtype is not None:
            _cast_tensors(layer, dtype)
        with _record_calls(layer, dtype, calls) as finish:
            loss = problem.loss_on(batch)
            finish()
            if len(calls) != 1:
                how = "does not run" if not calls else f"runs {len(calls)} times"
                raise StateError(
                    f"the layer {name!r} {how} in one forward pass; the statements are about one "
                    "run."
                )
            gradient = _differentiate(loss, calls[0].output, name)
            observation = Observation(layer, *calls[0], gradient, count)
            observation.check_formula()
            yield observation


def _differentiate(loss: Tensor, output: Tensor, name: str) -> Tensor:
    gradient: Tensor | None = None
    if loss.requires_grad:  # by the layer's output alone
        (gradient,) = torch.autograd.grad(loss, output, create_graph=True, allow_unused=True)
    if gradient is None:
        raise StateError(f"the loss does not depend on the layer {name!r}.")
    return gradient


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _cast_tensors(layer: nn.Module, dtype: torch.dtype) -> None:
    """Replace the layer's parameters and buffers; a tied one stays as it is elsewhere."""
    slots: list[dict[str, Any]] = [
        slot for module in layer.modules() for slot in (module._parameters, module._buffers)
    ]
    for slot in slots:
        slot.update({name: _cast(each, dtype) for name, each in slot.items() if each is not None})


class _Call(NamedTuple):
    y: Tensor
    z: Tensor
    output: Tensor


@contextmanager
def _record_calls(
    layer: nn.Module, dtype: torch.dtype | None, calls: list[_Call]
) -> Iterator[Callable[[], None]]:
    """Cut the graph before and after the layer, which runs in a dtype, and record its calls.

    Yields:
        What ends the recording: then the layer must not run any more.
    """
    inputs: list[tuple[Tensor, torch.dtype]] = []
    finished: list[bool] = []

    def enter(
        module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if finished:
            raise StateError(
                "the layer runs again in the backward pass, as a checkpointed part of a model "
                "does; call it without torch.utils.checkpoint for the check."
            )
        given = arguments or tuple(options.values())  # a norm layer takes only its input
        # a leaf, so that other users of the values, such as a shortcut, do not count
        y = given[0].detach().to(dtype or given[0].dtype).requires_grad_()
        inputs.append((y, given[0].dtype))
        return (y, *given[1:]), {}

    def leave(module: nn.Module, arguments: tuple[Any, ...], z: Tensor) -> Tensor:
        y, own = inputs[-1]
        output = z.detach().to(own if dtype is not None else z.dtype).requires_grad_()
        calls.append(_Call(y, z, output))
        return output.clone()  # the next module may overwrite it in place

    handles = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave, prepend=True),
    ]
    try:
        yield lambda: finished.append(True)
    finally:
        for handle in handles:
            handle.remove()


class Products:
    """Products with the Hessian by a layer's outputs, or with its diagonal blocks.

    What lies in the span of earlier vectors follows by linearity, in float64. So the parts of a
    statement share their products, and both sides of an identity see the same matrix even if a
    product has few digits.

    Args:
        multiply: computes products.
        coupled: whether the units have one matrix, instead of a block each.

    Examples:
        >>> asked = []
        >>> def twice(units, vectors):
        ...     asked.append(units)
        ...     return 2 * vectors
        >>> times = Products(twice, coupled=False)
        >>> vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        >>> torch.allclose(times(vectors), 2 * vectors), asked
        (True, [[0], [1]])
        >>> torch.allclose(times(-3 * vectors), -6 * vectors), len(asked)
        (True, 2)
    """

    def __init__(self, multiply: Multiply, coupled: bool) -> None:
        self._multiply, self._coupled = multiply, coupled
        self._known: dict[int, _Span] = {}

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the products with the vectors, (units, batch)."""
        if self._coupled:
            every = list(range(len(vectors)))

            def multiply(flat: Tensor) -> Tensor:
                return self._multiply(every, flat.view_as(vectors)).reshape(-1)

            return self._span(0).times(vectors.reshape(-1), multiply).view_as(vectors)
        products = [
            self._span(unit).times(row, self._block(unit)) for unit, row in enumerate(vectors)
        ]
        return torch.stack(products)

    def _span(self, unit: int) -> _Span:
        return self._known.setdefault(unit, _Span())

    def _block(self, unit: int) -> Callable[[Tensor], Tensor]:
        return lambda row: self._multiply([unit], row.unsqueeze(0))[0]


class _Span:
    """Orthonormal vectors with their products."""

    def __init__(self) -> None:
        self._basis: list[Tensor] = []
        self._images: list[Tensor] = []

    def times(self, vector: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the product with a vector; the part outside of the span is multiplied."""
        rest, product = vector, torch.zeros_like(vector)
        for _ in range(2 if self._basis else 0):  # the first projection leaves rounding errors
            for unit, image in zip(self._basis, self._images, strict=True):
                share = unit @ rest
                rest, product = rest - share * unit, product + share * image
        length = rest.norm()
        if length > ROUNDING * vector.norm():
            self._basis.append(rest / length)
            self._images.append(multiply(self._basis[-1]))
            product = product + length * self._images[-1]
        return product
