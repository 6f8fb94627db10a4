"""Each step of a chain as a link: what it computes on a batch, and its derivative there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.curvature import chain_fixed as fixed
from normscope.curvature.chain_affine import LinearLink
from normscope.curvature.chain_convolution import ConvolutionLink
from normscope.curvature.chain_functions import Average, Reshape
from normscope.curvature.chain_links import Link
from normscope.curvature.chain_norm import BatchNormLink, normalized
from normscope.curvature.chain_steps import NotAChainError, Step
from normscope.layers import batch_norm, noisy
from normscope.layers.kinds import NoNorm
from normscope.problem.evaluate import prefers_channels_last

__all__ = ["READERS", "Scene", "links_of"]


@dataclass(frozen=True)
class Scene:
    """Where the derivatives are taken.

    Args:
        mode: "train", "frozen" or "eval".
        tensors: parameters and buffers by qualified name.
        wanted: names of the parameters to differentiate by.
        curved: whether second derivatives will be asked for.
    """

    mode: str
    tensors: Mapping[str, Tensor]
    wanted: frozenset[str]
    curved: bool = False

    def tensor(self, module: str, name: str) -> Tensor | None:
        """A parameter or buffer of a module; None if it has none."""
        return self.tensors.get(f"{module}.{name}" if module else name)

    def names(self, module: str) -> tuple[str | None, str | None]:
        """Names of a module's weight and bias; None for one that is not wanted."""
        prefix = f"{module}." if module else ""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        return (
            weight if weight in self.wanted else None,
            bias if bias in self.wanted else None,
        )


#: the link (None: the identity) and the output of a module on a batch
Reading: TypeAlias = tuple[Link | None, Tensor]


def links_of(steps: list[Step], inputs: Tensor, scene: Scene) -> tuple[list[Link], Tensor]:
    """The links from the first one that has a wanted parameter to the last, and the output.

    Args:
        steps: modules by name, of classes in `READERS`.
        inputs: of the first one.
        scene: where the derivatives are taken.

    Returns:
        The links and the last one's output. Of what lies below the first link nothing is kept.

    Raises:
        NotAChainError: if a module does something that no link knows.
    """
    links: list[Link] = []
    for name, module in steps:
        reader = READERS.get(type(module))
        if reader is None:
            raise NotAChainError(f"{type(module).__name__} is not known")
        link, inputs = reader(name, module, inputs, scene)
        if link is not None and (links or link.names != (None, None)):
            links.append(link)
    return links, inputs


def _linear(name: str, module: Any, inputs: Tensor, scene: Scene) -> Reading:
    weight = _required(scene, name, "weight")
    if inputs.dim() < 2:
        raise NotAChainError("a linear layer acts on one sample")
    bias = scene.tensor(name, "bias")
    return LinearLink(inputs, weight, scene.names(name)), functional.linear(inputs, weight, bias)


def _convolution(name: str, module: Any, inputs: Tensor, scene: Scene) -> Reading:
    weight = _required(scene, name, "weight")
    if module.padding_mode != "zeros" or inputs.dim() != weight.dim():
        raise NotAChainError("a convolution pads by other values than zero, or has no batch")
    if prefers_channels_last(inputs):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    link = ConvolutionLink(
        inputs,
        weight,
        scene.names(name),
        module.stride,
        _padding(module),
        module.dilation,
        module.groups,
    )
    return link, link.output(scene.tensor(name, "bias"))


def _padding(module: Any) -> tuple[int, ...]:
    if module.padding == "valid":
        return (0,) * len(module.stride)
    if module.padding == "same":
        sizes = zip(module.dilation, module.kernel_size, strict=True)
        totals = [dilation * (kernel - 1) for dilation, kernel in sizes]
        if any(total % 2 for total in totals):
            raise NotAChainError("a convolution pads one side more than the other")
        return tuple(total // 2 for total in totals)
    padding: tuple[int, ...] = module.padding
    return padding


def _batch_norm(name: str, module: Any, inputs: Tensor, scene: Scene) -> Reading:
    if getattr(module, "process_group", None) is not None:
        raise NotAChainError("batch statistics are shared between processes")
    if inputs.dim() < 2 or inputs.shape[1] != module.num_features:
        raise NotAChainError("batch normalization has an input it does not take")
    statistics = _running_statistics(name, scene) if scene.mode == "eval" else None
    if statistics is None and inputs.numel() <= inputs.shape[1]:
        raise NotAChainError("batch statistics need more than one value per channel")
    values, inverse = normalized(inputs, statistics, module.eps)
    gamma, beta = scene.tensor(name, "weight"), scene.tensor(name, "bias")
    scale = inverse if gamma is None else gamma * inverse
    through = statistics is None and scene.mode != "frozen"
    link = BatchNormLink(values, scale, inverse, through, scene.names(name))
    return link, link.output(gamma, beta)


def _running_statistics(name: str, scene: Scene) -> tuple[Tensor, Tensor] | None:
    mean, variance = scene.tensor(name, "running_mean"), scene.tensor(name, "running_var")
    return None if mean is None or variance is None else (mean, variance)


def _noisy_batch_norm(name: str, module: Any, inputs: Tensor, scene: Scene) -> Reading:
    if scene.mode != "eval":
        raise NotAChainError("noise is drawn anew in each forward pass")
    return _batch_norm(name, module, inputs, scene)


def _activation(name: str, module: nn.Module, inputs: Tensor, scene: Scene) -> Reading:
    function = copy.copy(module)
    function.__dict__["inplace"] = False  # its input is kept by the link below
    try:
        link = fixed.ActivationLink(function, inputs, scene.curved)
    except RuntimeError as error:  # some have no second derivative
        raise NotAChainError(f"{type(module).__name__} is not curved: {error}") from error
    return link, link.output


def _relu(name: str, module: nn.Module, inputs: Tensor, scene: Scene) -> Reading:
    link = fixed.ReluLink(inputs)
    return link, link.output


def _reshape(name: str, module: nn.Module, inputs: Tensor, scene: Scene) -> Reading:
    output = module(inputs)
    return fixed.ReshapeLink(inputs, output), output


def _fixed_map(name: str, module: nn.Module, inputs: Tensor, scene: Scene) -> Reading:
    link = fixed.FixedMapLink(module, inputs)
    return link, link.output


def _max_pool(name: str, module: Any, inputs: Tensor, scene: Scene) -> Reading:
    if module.return_indices:
        raise NotAChainError("maximum pooling returns its indices too")
    dimensions = 1 + (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d).index(type(module))
    if inputs.dim() != dimensions + 2:
        raise NotAChainError("maximum pooling acts on one sample")
    pooling = copy.copy(module)
    pooling.return_indices = True
    link = fixed.MaxPoolLink(pooling, inputs, dimensions)
    return link, link.output


def _identity(name: str, module: nn.Module, inputs: Tensor, scene: Scene) -> Reading:
    return None, inputs


def _dropout(name: str, module: Any, inputs: Tensor, scene: Scene) -> Reading:
    if scene.mode != "eval" and module.p > 0:
        raise NotAChainError("dropout is drawn anew in each forward pass")
    return None, inputs


def _required(scene: Scene, module: str, name: str) -> Tensor:
    tensor = scene.tensor(module, name)
    if tensor is None:
        raise NotAChainError(f"{module!r} has no {name} of its own")
    return tensor


Reader: TypeAlias = Callable[[str, Any, Tensor, Scene], Reading]

# exactly these classes: a subclass may compute something else
READERS: dict[type[nn.Module], Reader] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    **dict.fromkeys(
        (batch_norm.BatchNorm1d, batch_norm.BatchNorm2d, batch_norm.BatchNorm3d), _batch_norm
    ),
    **dict.fromkeys(
        (noisy.NoisyBatchNorm1d, noisy.NoisyBatchNorm2d, noisy.NoisyBatchNorm3d),
        _noisy_batch_norm,
    ),
    nn.ReLU: _relu,
    **dict.fromkeys(
        (
            *(nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus),
            *(nn.CELU, nn.SELU, nn.Mish, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
            *(nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink),
        ),
        _activation,
    ),
    **dict.fromkeys((nn.Flatten, nn.Unflatten, Reshape), _reshape),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _fixed_map),
    **dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, Average), _fixed_map
    ),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _max_pool),
    **dict.fromkeys((nn.Identity, NoNorm), _identity),
    **dict.fromkeys(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), _dropout
    ),
}
