"""Read a model as a chain of layers with known derivatives, and verify what was read."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.curvature.autograd.convolution import ConvolutionGeometry
from normscope.curvature.chains.affine import ConvolutionLink, LinearLink
from normscope.curvature.chains.batch_norm import BatchNormLink, normalize
from normscope.curvature.chains.jacobian import ChainJacobian, locked_without_grad
from normscope.curvature.chains.links import (
    ActivationLink,
    LinearMapLink,
    Link,
    MaxPoolLink,
    ReluLink,
    ReshapeLink,
)
from normscope.curvature.chains.steps import (
    Average,
    NotAChainError,
    Reshape,
    Step,
    refuse_hooks,
    steps_of,
)
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from normscope.problem.batch import to_double
from normscope.problem.evaluate import prefers_channels_last
from normscope.problem.isolation import isolated
from normscope.problem.modes import set_flags, training_flags
from normscope.problem.parameters import ParameterLayout
from normscope.problem.wrappers import run_unwrapped

_CHECKED_SAMPLES = 32
_DTYPES = (torch.float32, torch.float64)
_LOGGER = logging.getLogger(__name__)


def chain_jacobian(
    model: nn.Module,
    inputs: Tensor,
    mode: str,
    layout: ParameterLayout,
    point: Mapping[str, Tensor] | None = None,
    curved: bool = False,
    flags: Mapping[str, bool] | None = None,
) -> ChainJacobian | None:
    """Return the Jacobian of a model on a batch, if the model is a chain of known layers.

    The chain that was read is checked against the model's own forward pass on a few samples. The
    model is left as it is.

    Args:
        model: any module.
        inputs: the batch's inputs, samples first.
        mode: "train", "frozen", "eval" or "as_is".
        layout: the parameters to differentiate by.
        point: parameters and buffers by qualified name; None for the model's own.
        curved: whether second derivatives are needed.
        flags: the modules' flags, as `training_flags` returned them; None: its present answer.

    Returns:
        The Jacobian; None if any part of the model is unknown.

    >>> from normscope.problem.parameters import parameter_layout
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> inputs = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    >>> jacobian = chain_jacobian(model, inputs, "train", parameter_layout(model))
    >>> jacobian.gram(torch.tensor([[1.0], [0.0]]))[0]  # the first column of inputs @ inputs.T
    tensor([[9.],
            [3.]])
    """
    inputs = inputs.detach()
    try:
        with locked_without_grad():
            refuse_hooks(model)
            tensors, wanted = _tensors(model, inputs, point), frozenset(layout.names)
            at = _Point(mode == "frozen", tensors, wanted, curved)
            with _isolated(model, tensors):
                set_flags(model, training_flags(model, mode) if flags is None else flags)
                steps, certain = steps_of(model, lambda module: _reader(module) is not None)
                _check_values(model, steps, inputs, at)
                if not certain:
                    _check_gradients(model, steps, inputs, at, layout)
                links, output = _read(steps, inputs, at)
            if not links or output.dim() == 0 or len(output) != len(inputs):
                raise NotAChainError("its output is not one row of values per sample")
    except NotAChainError as reason:
        _LOGGER.debug("%s is not a chain: %s", type(model).__name__, reason)
        return None
    return ChainJacobian(links, output, layout)


@dataclass(frozen=True)
class _Point:
    """Where the derivatives are taken; the modules have the flags of the mode meanwhile.

    Args:
        frozen: whether batch statistics are constants.
        tensors: parameters and buffers by qualified name.
        wanted: names of the parameters to differentiate by.
        curved: whether second derivatives are needed.
    """

    frozen: bool
    tensors: Mapping[str, Tensor]
    wanted: frozenset[str]
    curved: bool = False

    def tensor(self, module: str, name: str) -> Tensor | None:
        """Return a parameter or buffer of a module; None if the module does not have it."""
        return self.tensors.get(f"{module}.{name}" if module else name)

    def weight(self, module: str) -> Tensor:
        """Return the weight of a module."""
        weight = self.tensor(module, "weight")
        if weight is None:
            raise NotAChainError(f"{module!r} has no weight parameter")
        return weight

    def names(self, module: str) -> tuple[str | None, str | None]:
        """Return the names of a module's weight and bias; None for one that is not wanted."""
        prefix = f"{module}." if module else ""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        return (
            weight if weight in self.wanted else None,
            bias if bias in self.wanted else None,
        )


def _tensors(
    model: nn.Module, inputs: Tensor, point: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """Return parameters and buffers by name: plain tensors of the inputs' dtype and device."""
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
        raise NotAChainError("its tensors differ from the inputs in dtype or device")
    return tensors


@contextmanager
def _isolated(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Run the model alone, on other tensors, with buffers copied, and restore it on exit."""
    buffers = {name: tensors[name].clone() for name, _ in model.named_buffers()}
    with isolated(model, tensors={**tensors, **buffers}):
        run_unwrapped(model)
        yield


def _check_values(model: nn.Module, steps: list[Step], inputs: Tensor, at: _Point) -> None:
    """Refuse a chain whose output on a few samples differs from the model's."""
    few = inputs[:_CHECKED_SAMPLES]
    expected = _output(model, few)
    _, output = _read(steps, few, at)
    _compare(output, expected, float(expected.abs().max()))


def _check_gradients(
    model: nn.Module, steps: list[Step], inputs: Tensor, at: _Point, layout: ParameterLayout
) -> None:
    """Refuse a chain whose gradients on a few samples differ from the model's, in float64.

    A user-defined forward may stop gradients (``torch.no_grad``), which its values do not show.
    """
    few = inputs[:_CHECKED_SAMPLES].double()
    tensors: dict[str, Tensor] = to_double(at.tensors)
    leaves = {name: tensors[name].detach().requires_grad_() for name in sorted(at.wanted)}
    # the backward pass may run the model again (activation checkpointing)
    with torch.enable_grad(), _isolated(model, tensors | leaves):
        output = _output(model, few)
        if not output.requires_grad:
            raise NotAChainError("its output does not depend on the parameters")
        cotangent = torch.linspace(0.5, 1.5, output.numel()).to(output).view(output.shape)
        expected = torch.autograd.grad(
            output, list(leaves.values()), cotangent, materialize_grads=True
        )
    # the model's own forward does not hold statistics constant
    links, own = _read(steps, few, replace(at, frozen=False, tensors=tensors))
    found = ChainJacobian(links, own, layout).gradients(cotangent)
    scale = max((float(g.abs().max()) for g in expected if g.numel()), default=0.0)
    for name, gradient in zip(leaves, expected, strict=True):
        other = found.get(name)
        _compare(torch.zeros_like(gradient) if other is None else other, gradient, scale)


def _output(model: nn.Module, few: Tensor) -> Tensor:
    try:
        output = model(few.clone())  # the model may overwrite its input
    except Exception as error:  # the general path will raise it again
        raise NotAChainError(f"its forward raises {error!r}") from error
    if not isinstance(output, Tensor):
        raise NotAChainError("its output is not a tensor")
    return output


def _compare(found: Tensor, expected: Tensor, scale: float) -> None:
    if found.shape != expected.shape:
        raise NotAChainError("its output has another shape")
    tolerance = torch.finfo(found.dtype).eps ** 0.5
    # "not <=" also refuses a difference that is NaN
    if not ((found - expected).abs() <= tolerance * scale).all():
        raise NotAChainError("its output or gradient differs from the chain's")


def _read(steps: list[Step], inputs: Tensor, at: _Point) -> tuple[list[Link], Tensor]:
    """Return the links from the first with a wanted parameter on, and the last one's output."""
    links: list[Link] = []
    for name, module in steps:
        reader = _reader(module)
        if reader is None:
            raise NotAChainError(f"{type(module).__name__} is not known")
        link, inputs = reader(name, module, inputs, at)
        if link is not None and (links or link.names != (None, None)):
            links.append(link)
    return links, inputs


#: the link (None: the identity) and the output of a module on a batch
_Reading: TypeAlias = tuple[Link | None, Tensor]
_Reader: TypeAlias = Callable[[str, Any, Tensor, _Point], _Reading]
# exactly these classes: a subclass may compute something else
_READERS: dict[type[nn.Module], _Reader] = {}


def _reads(*classes: type[nn.Module]) -> Callable[[_Reader], _Reader]:
    """Return a decorator that registers the reader of some classes of modules."""

    def register(reader: _Reader) -> _Reader:
        _READERS.update(dict.fromkeys(classes, reader))
        return reader

    return register


@_reads(nn.Linear)
def _linear(name: str, module: Any, inputs: Tensor, at: _Point) -> _Reading:
    weight = at.weight(name)
    if inputs.dim() < 2:
        raise NotAChainError("a linear layer has an input without batch dimension")
    bias = at.tensor(name, "bias")
    return LinearLink(inputs, weight, at.names(name)), functional.linear(inputs, weight, bias)


@_reads(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(name: str, module: Any, inputs: Tensor, at: _Point) -> _Reading:
    weight = at.weight(name)
    if module.padding_mode != "zeros" or inputs.dim() != weight.dim():
        raise NotAChainError("a convolution is not padded by zeros, or has no batch dimension")
    if prefers_channels_last(inputs):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    geometry = ConvolutionGeometry(module.stride, _padding(module), module.dilation, module.groups)
    link = ConvolutionLink(inputs, weight, at.names(name), geometry)
    return link, link.output(at.tensor(name, "bias"))


def _padding(module: Any) -> tuple[int, ...]:
    if module.padding == "valid":
        return (0,) * len(module.stride)
    if module.padding == "same":
        sizes = zip(module.dilation, module.kernel_size, strict=True)
        totals = [dilation * (kernel - 1) for dilation, kernel in sizes]
        if any(total % 2 for total in totals):
            raise NotAChainError("a convolution is padded unevenly")
        return tuple(total // 2 for total in totals)
    padding: tuple[int, ...] = module.padding
    return padding


@_reads(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm1d, BatchNorm2d, BatchNorm3d)
def _batch_norm(name: str, module: Any, inputs: Tensor, at: _Point) -> _Reading:
    if inputs.dim() < 2 or inputs.shape[1] != module.num_features:
        raise NotAChainError("batch normalization has an input of another shape")
    statistics = None if module.training else _running_statistics(name, at)
    if statistics is None and inputs.numel() <= inputs.shape[1]:
        raise NotAChainError("batch statistics need more than one value per channel")
    values, inverse = normalize(inputs, statistics, module.eps)
    gamma, beta = at.tensor(name, "weight"), at.tensor(name, "bias")
    scale = inverse if gamma is None else gamma * inverse
    through = statistics is None and not at.frozen
    link = BatchNormLink(values, scale, inverse, through, at.names(name))
    return link, link.output(gamma, beta)


def _running_statistics(name: str, at: _Point) -> tuple[Tensor, Tensor] | None:
    mean, variance = at.tensor(name, "running_mean"), at.tensor(name, "running_var")
    return None if mean is None or variance is None else (mean, variance)


@_reads(NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
def _noisy_batch_norm(name: str, module: Any, inputs: Tensor, at: _Point) -> _Reading:
    if module.training:
        raise NotAChainError("noise is drawn in each forward pass")
    return _batch_norm(name, module, inputs, at)


@_reads(nn.ReLU)
def _relu(name: str, module: nn.Module, inputs: Tensor, at: _Point) -> _Reading:
    link = ReluLink(inputs)
    return link, link.output


@_reads(
    *(nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus),
    *(nn.CELU, nn.SELU, nn.Mish, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink),
)
def _activation(name: str, module: nn.Module, inputs: Tensor, at: _Point) -> _Reading:
    function = copy.copy(module)
    function.__dict__["inplace"] = False  # the link of the layer before keeps its input
    try:
        link = ActivationLink(function, inputs, at.curved)
    except RuntimeError as error:  # some activations have no second derivative in PyTorch
        raise NotAChainError(f"{type(module).__name__}: {error}") from error
    return link, link.output


@_reads(nn.Flatten, nn.Unflatten, Reshape)
def _reshape(name: str, module: nn.Module, inputs: Tensor, at: _Point) -> _Reading:
    output = module(inputs)
    return ReshapeLink(inputs, output), output


@_reads(
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, Average),
)
def _average(name: str, module: nn.Module, inputs: Tensor, at: _Point) -> _Reading:
    link = LinearMapLink(copy.copy(module), inputs)  # the model's module may change later
    return link, link.output


@_reads(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _max_pool(name: str, module: Any, inputs: Tensor, at: _Point) -> _Reading:
    if module.return_indices:
        raise NotAChainError("maximum pooling returns its indices too")
    dimensions = 1 + (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d).index(type(module))
    if inputs.dim() != dimensions + 2:
        raise NotAChainError("maximum pooling has an input without batch dimension")
    pooling = copy.copy(module)
    pooling.return_indices = True
    link = MaxPoolLink(pooling, inputs, dimensions)
    return link, link.output


def _identity(name: str, module: nn.Module, inputs: Tensor, at: _Point) -> _Reading:
    return None, inputs


def _reader(module: nn.Module) -> _Reader | None:
    """Return the reader of a module's class; None if the class is unknown."""
    identity = type(module).forward is nn.Identity.forward  # also of subclasses
    return _identity if identity else _READERS.get(type(module))


@_reads(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
def _dropout(name: str, module: Any, inputs: Tensor, at: _Point) -> _Reading:
    if module.training and module.p > 0:
        raise NotAChainError("dropout is drawn in each forward pass")
    return None, inputs
