"""What hooks see of one forward and backward pass: signals, statistics, gradients, data flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnosis.attention import AttentionRecorder, Logits
from normscope.layers.detect import epsilon, positionwise_norm
from normscope.layers.population import BatchStatistics, batch_statistics
from normscope.problem.batch import tensors_of
from normscope.problem.modes import is_batch_norm
from normscope.problem.outputs import output_tensors

CONSTANT = 1e-6
"""A channel is constant if its values differ by less than this share of the tensor's RMS."""

_CHANNELS_SECOND = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@dataclass(frozen=True)
class Signal:
    """Numbers about one floating-point tensor.

    Attributes:
        shape: of the tensor.
        non_finite: how many of its values are infinite or NaN.
        rms: root mean square of the others.
        largest: the largest absolute value of the others.
        variation: variance over the samples, as a share of the mean square; 0 if every sample has
            the same values.
        constant: whether each channel has one value for all samples and positions.
    """

    shape: tuple[int, ...]
    non_finite: int
    rms: float
    largest: float
    variation: float
    constant: Tensor

    @property
    def constant_share(self) -> float:
        """The share of constant channels."""
        return float(self.constant.double().mean()) if self.constant.numel() else 0.0


def signal_of(tensor: Tensor, axis: int) -> Signal:
    """Return the numbers about a tensor whose channels are on an axis.

    >>> found = signal_of(torch.tensor([[0.0, 1.0], [0.0, 3.0]]), axis=1)
    >>> found.constant.tolist(), round(found.variation, 2)
    ([True, False], 0.2)
    """
    values = tensor.detach()
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    finite = values.isfinite()
    non_finite = int((~finite).sum())
    values = values if non_finite == 0 else torch.where(finite, values, 0.0)
    rms = float(values.square().mean().sqrt())
    varies = values.dim() > 1 and len(values) > 1
    variance = float(values.var(dim=0, correction=0).mean()) if varies else float("nan")
    rows = values.movedim(axis, 0).flatten(1) if values.dim() > 1 else values[:, None]
    constant = rows.amax(1) - rows.amin(1) <= CONSTANT * rms
    if rows.shape[1] < 2:  # one value does not vary
        constant = torch.zeros_like(constant)
    size = float(values.abs().max())
    variation = variance / max(rms**2, 1e-300) if rms > 0 else 0.0
    return Signal(tuple(values.shape), non_finite, rms, size, variation, constant.cpu())


@dataclass
class Call:
    """One call of a layer in the forward pass.

    Attributes:
        path: qualified name of the layer.
        module: the layer.
        order: number of the call.
        source: number of the call whose output is the input, unchanged; None if it is none's.
        axis: of the output's channels.
        input: numbers about the input; None if it is not a floating-point tensor.
        output: numbers about the output; None likewise.
        statistics: batch statistics of the input of a batch norm layer.
        spread: what other norm layers divide by, squared and without epsilon; a value each row.
        input_is_trained: whether the input depends on a parameter that is trained.
        gradient: norm of the loss's gradient with respect to the output; NaN if it has none.
        eps: epsilon of a norm layer during the pass; 0 if it has none.
        training: flag of the layer during the pass.
    """

    path: str
    module: nn.Module
    order: int
    source: int | None
    axis: int
    input: Signal | None
    output: Signal | None = None
    statistics: BatchStatistics | None = None
    spread: Tensor | None = None
    input_is_trained: bool = False
    gradient: float = float("nan")
    eps: float = 0.0
    training: bool = True

    @property
    def has_weight(self) -> bool:
        """Whether it is a layer with a weight matrix or kernel."""
        return any(p is not None and p.dim() > 1 for p in self.module._parameters.values())


@dataclass
class Observation:
    """What one pass showed.

    Attributes:
        calls: of the layers, in order of execution.
        loss: its value.
        output: the first floating-point tensor of the model's output; None if it has none.
        output_source: number of the call that returned that tensor; None if none did.
        gradients: of the parameters by name; empty without a backward pass.
        non_finite: path of the first module that produced a value that is not finite, whether in
            the backward pass, and the number of such values; None if there is none.
        attention: numbers about attention logits, by module and call.
        buffers: buffers by name, after the pass.
    """

    calls: list[Call] = field(default_factory=list)
    loss: float = float("nan")
    output: Tensor | None = None
    output_source: int | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)
    non_finite: tuple[str, bool, int] | None = None
    attention: list[Logits] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def of(self, path: str) -> list[Call]:
        """Return the calls of a layer."""
        return [call for call in self.calls if call.path == path]

    def source_of(self, call: Call) -> Call | None:
        """Return the call whose output is the input of another; None if there is none."""
        return None if call.source is None else self.calls[call.source]

    def users_of(self, call: Call) -> Iterator[Call]:
        """Yield the calls whose input is the output of another, unchanged."""
        return (each for each in self.calls if each.source == call.order)

    def weight_layers(self) -> list[Call]:
        """Return the calls of layers with a weight matrix or kernel, in order."""
        return [call for call in self.calls if call.has_weight]


class Observer:
    """Hooks on every module of a model; `normscope.problem.isolation` removes them.

    Args:
        model: the model, isolated.
        norms: its norm layers by name.
    """

    def __init__(self, model: nn.Module, norms: Mapping[str, nn.Module]) -> None:
        self.seen = Observation()
        self._norms = {id(module) for module in norms.values()}
        self._running: list[str] = []
        self._made: dict[int, tuple[int, int, Tensor]] = {}  # by id: call, version, the tensor
        self._open: list[Call | None] = []
        self._is_finished = False  # checkpointed parts run again in the backward pass
        self.attention = AttentionRecorder(self._running)
        for path, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._before, path), with_kwargs=True)
            module.register_forward_hook(partial(self._after, path))

    def finish(self, output: Any) -> Observation:
        """Return what was seen, after the forward pass.

        Args:
            output: of the model.
        """
        found = [each for each in output_tensors(output) if each.is_floating_point()]
        if found:
            self.seen.output = found[0].detach().clone()
            self.seen.output_source = self._source(found[0])
        self._is_finished = True
        self.seen.attention = self.attention.found
        self._made.clear()
        return self.seen

    def _is_layer(self, module: nn.Module) -> bool:
        whole = id(module) in self._norms or isinstance(module, nn.MultiheadAttention)
        return whole or next(module.children(), None) is None

    def _before(
        self, path: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if self._is_finished:
            return
        tensor = _first_float((args, named))
        if tensor is not None:
            self._check(tensor, self._running[-1] if self._running else "the data")
        self._running.append(path)
        call = self._start(path, module, tensor) if self._is_layer(module) else None
        self._open.append(call)
        if isinstance(module, nn.MultiheadAttention):
            self.attention.record_module(path, module, args, named)

    def _start(self, path: str, module: nn.Module, tensor: Tensor | None) -> Call:
        source = None if tensor is None else self._source(tensor)
        axis = self._axis(module, tensor, source)
        call = Call(path, module, -1, source, axis, None, training=module.training)
        if tensor is not None:
            call.input = signal_of(tensor, axis)
            call.input_is_trained = tensor.requires_grad
            if id(module) in self._norms:
                call.statistics, call.spread = _norm_statistics(module, tensor, path)
                call.eps = epsilon(module) or 0.0
        return call

    def _after(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._is_finished:
            return
        self._running.pop()
        call = self._open.pop()
        tensor = _first_float(output)
        if tensor is not None:
            self._check(tensor, path)
        if call is not None:
            self._end(call, tensor)

    def _end(self, call: Call, tensor: Tensor | None) -> None:
        call.order = len(self.seen.calls)
        self.seen.calls.append(call)
        if tensor is None:
            return
        axis = call.axis if call.axis < tensor.dim() else -1
        call.output = signal_of(tensor, axis)
        self._made[id(tensor)] = (call.order, _version(tensor), tensor)
        if tensor.requires_grad:
            tensor.register_hook(partial(self._add_gradient, call))  # type: ignore[no-untyped-call]

    def _add_gradient(self, call: Call, gradient: Tensor) -> None:
        call.gradient = float(gradient.detach().double().norm())
        count = int((~gradient.isfinite()).sum())
        if count and self.seen.non_finite is None:
            user = next(self.seen.users_of(call), None)
            parent = call.path.rpartition(".")[0]
            self.seen.non_finite = (parent if user is None else user.path, True, count)

    def _check(self, tensor: Tensor, path: str) -> None:
        if self.seen.non_finite is None and not bool(tensor.detach().isfinite().all()):
            count = int((~tensor.detach().isfinite()).sum())
            self.seen.non_finite = (path, False, count)

    def _source(self, tensor: Tensor) -> int | None:
        order, version, made = self._made.get(id(tensor), (None, None, None))
        return order if made is tensor and version == _version(tensor) else None

    def _axis(self, module: nn.Module, tensor: Tensor | None, source: int | None) -> int:
        """Return the axis of the channels: of the layer, of the layer before it, or the usual."""
        if isinstance(module, _CHANNELS_SECOND):
            return 1
        if isinstance(module, _CHANNELS_LAST) or tensor is None:
            return -1
        if source is not None:
            return self.seen.calls[source].axis
        return -1 if tensor.dim() == 3 else min(1, tensor.dim() - 1)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _first_float(value: Any) -> Tensor | None:
    plain = list(tensors_of(value)) or output_tensors(value)
    return next((each for each in plain if each.is_floating_point() and each.numel()), None)


def _norm_statistics(
    module: nn.Module, x: Tensor, path: str
) -> tuple[BatchStatistics | None, Tensor | None]:
    """Return batch statistics of a batch norm's input, and what a norm layer divides by."""
    x = x.detach()
    if is_batch_norm(module):
        fits = x.dim() > 1 and x.shape[1] == module.num_features  # e.g. not unbatched
        if not fits or x.numel() <= x.shape[1]:
            return None, None
        found = batch_statistics(module, x, path)
        return found, found.spread
    wide = x.double()
    if isinstance(module, nn.GroupNorm):
        return None, wide.reshape(len(x), module.num_groups, -1).var(-1, correction=0).flatten()
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and x.dim() > 2:
        return None, wide.flatten(2).var(-1, correction=0).flatten()
    known = positionwise_norm(module)
    if known is None:
        return None, None
    rows = wide.movedim(known.feature_axis, -1)
    centred = rows - rows.mean(-1, keepdim=True) if known.kind == "layer" else rows
    return None, centred.square().mean(-1).flatten()
