"""What each module and function of a forward pass means to the theory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from normscope.layers.detect import OWN_FORWARDS, PositionwiseNorm, epsilon, positionwise_norm
from normscope.layers.kinds import kind_of
from normscope.layers.surgery.plain_layers import is_plain_layer, spatial_dimensions
from normscope.meanfield.activations import ACTIVATIONS, Dropout, Nonlinearity, Rectifier, Smooth
from normscope.meanfield.combinations import Addition
from normscope.meanfield.field import Operation
from normscope.meanfield.norms import BatchNorm, SampleNorm, TokenNorm
from normscope.meanfield.pooling import AveragePool, Flatten, MaxPool
from normscope.meanfield.weighted import Convolution, Linear
from normscope.meanfield.windows import Window
from normscope.problem.modes import is_batch_norm

SUPPORTED = (
    "Linear, Conv1d/2d/3d, BatchNorm, LayerNorm and RMSNorm over channels, LayerNorm over whole "
    "samples, GroupNorm with several channels in a group, ReLU, LeakyReLU, Tanh, GELU, SiLU, "
    "Hardswish, Sigmoid, erf, average and max pooling, Dropout, Identity, reshapes, permutations "
    "and slices, residual addition, products and concatenations of branches, self-attention, and "
    "activations of your own by activations={Type: function}"
)


class Unsupported(Enum):
    """Marks what the theory has no closure for."""

    HERE = "no closure"


Made = Operation | Addition | Unsupported | None  # None: the identity


def operation_of_module(module: nn.Module, activations: dict[type, Any]) -> Made:
    """Return the operation of a module.

    Args:
        module: any module.
        activations: further activation modules by type, with their functions on arrays.

    Returns:
        The operation, None for the identity; Unsupported.HERE if there is no closure.
    """
    for kind, function in activations.items():
        if isinstance(module, kind):
            return Nonlinearity(Smooth(function, name=kind.__name__))
    if is_batch_norm(module):
        return _batch_norm(module) if kind_of(module) == "batch" else Unsupported.HERE
    own = own_norm(module)
    for kind, make in _RULES:
        if isinstance(module, kind) and own is None:
            return make(module)
    return Unsupported.HERE if own is None else _own_norm(module, own)


def own_norm(module: nn.Module | None) -> PositionwiseNorm | None:
    """Return what a layer or RMS normalization that the model defines itself does over channels.

    Args:
        module: any module.

    Returns:
        None if it is not a normalization over channels, or one of torch or normscope.
    """
    if module is None or type(module).__module__.startswith(OWN_FORWARDS):
        return None
    found = positionwise_norm(module)
    return None if found is None or found.followed else found


def window_of(kernel: Any, stride: Any, padding: Any, dilation: Any, dimensions: int) -> Window:
    """Return the window of torch's arguments, each a number or one for each dimension."""
    sizes = tuples(kernel, dimensions)
    return Window(
        sizes,
        sizes if stride is None or stride == () else tuples(stride, dimensions),
        tuple((side, side) for side in tuples(padding, dimensions)),
        tuples(dilation, dimensions),
    )


def tuples(value: Any, dimensions: int) -> tuple[int, ...]:
    """Return one number for each dimension."""
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def _linear(module: nn.Linear) -> Made:
    if not is_plain_layer(module):
        return Unsupported.HERE
    return linear_of(module.weight, module.bias)


def linear_of(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return the operation of a linear layer, with the moments of its weights."""
    outputs, inputs = weight.shape
    return Linear(inputs, outputs, **_weights(weight, bias, inputs))


def _convolution(module: _ConvNd) -> Made:
    if not is_plain_layer(module) or module.transposed or module.padding_mode != "zeros":
        return Unsupported.HERE
    window = Window(
        tuple(module.kernel_size), tuple(module.stride), _padding(module), tuple(module.dilation)
    )
    sizes = (module.in_channels, module.out_channels, window, module.groups)
    return Convolution(*sizes, **_weights(module.weight, module.bias, module.weight[0].numel()))


def _weights(weight: Tensor, bias: Tensor | None, fan_in: int) -> dict[str, Any]:
    """Return the moments of the weights and biases of a layer."""
    return {
        "weight_variance": _mean_square(weight) * fan_in,
        "bias_variance": _mean_square(bias),
        "has_bias": bias is not None,
        "weight_mean": float(weight.detach().double().mean()),
    }


def _padding(module: _ConvNd) -> tuple[tuple[int, int], ...]:
    """Return zeros before and after, also for padding given as a string."""
    if not isinstance(module.padding, str):
        return tuple((side, side) for side in module.padding)
    if module.padding == "valid":
        return ((0, 0),) * len(module.kernel_size)
    totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def _batch_norm(module: nn.Module) -> Made:
    inner = [child for child in module.modules() if child is not module]
    return Unsupported.HERE if inner or not _normalizes(module) else BatchNorm(**_affine_of(module))


def _normalizes(module: Any) -> bool:
    """Return whether a layer normalizes as its attributes say; a subclass may do more."""
    if type(module).forward.__module__.startswith(("torch.nn.", "normscope.layers.")):
        return True
    channels, tensors = module.num_features, [*module.parameters(), *module.buffers()]
    kind = next((each for each in tensors if each.is_floating_point()), torch.empty(0))
    for positions in ((), (3,), (3, 3), (3, 3, 3)):
        shape = (16, channels, *positions)
        x = torch.arange(math.prod(shape), dtype=torch.float64).square().sin().reshape(shape)
        x, layer = x.to(kind), copy.deepcopy(module).train()
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        expected = functional.batch_norm(x, None, None, weight, bias, True, eps=layer.eps)
        try:
            with torch.no_grad():
                return torch.allclose(layer(x), expected, rtol=1e-3, atol=1e-4)
        except Exception:  # not of these dimensions; a user's layer may fail in any way
            continue
    return False


def _layer_norm(module: nn.LayerNorm) -> Made:
    return SampleNorm(**_affine_of(module), shape=tuple(module.normalized_shape))


def _rms_norm(module: nn.RMSNorm) -> Made:
    if len(module.normalized_shape) > 1:
        return Unsupported.HERE
    eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    return TokenNorm(**_affine(module.weight, None, eps), centred=False)


def _own_norm(module: nn.Module, norm: PositionwiseNorm) -> TokenNorm:
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    scale = None if weight is None else weight.detach() + norm.offset
    affine = _affine(scale, bias, epsilon(module) or 0.0)
    return TokenNorm(**affine, centred=norm.kind == "layer", dimension=norm.feature_axis)


def _group_norm(module: nn.GroupNorm) -> Made:
    # a group of one channel removes the mean of that channel; a group of many does not
    single = module.num_channels == module.num_groups > 1
    return Unsupported.HERE if single else SampleNorm(**_affine_of(module))


def _affine_of(module: Any) -> dict[str, Any]:
    return _affine(getattr(module, "weight", None), getattr(module, "bias", None), module.eps)


def _affine(weight: Tensor | None, bias: Tensor | None, eps: float) -> dict[str, Any]:
    """Return the moments of the scale and shift of a normalization, and its epsilon."""
    shift = torch.zeros(1) if bias is None else bias.detach().double()
    return {
        "gamma": 1.0 if weight is None else _mean_square(weight) ** 0.5,
        "beta": float(shift.mean()),
        "beta_variance": float(shift.var(unbiased=False)),
        "eps": float(eps),
    }


def _mean_square(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float(tensor.detach().double().square().mean())


def _gelu(module: nn.GELU) -> Made:
    if module.approximate == "none":
        return Nonlinearity(ACTIVATIONS["gelu"])

    def function(z: Any) -> Any:
        return functional.gelu(torch.from_numpy(np.asarray(z)), approximate="tanh").numpy()

    return Nonlinearity(Smooth(function, name="gelu"))


def _average(module: Any) -> Made:
    divisor = getattr(module, "divisor_override", None)
    shape = (module.kernel_size, module.stride, module.padding)
    if module.ceil_mode or divisor is not None:
        return Unsupported.HERE
    window = window_of(*shape, 1, spatial_dimensions(module) or 0)
    return AveragePool(window, count_padding=module.count_include_pad)


def _maximum(module: Any) -> Made:
    shape = (module.kernel_size, module.stride, module.padding, module.dilation)
    window = window_of(*shape, spatial_dimensions(module) or 0)
    if module.return_indices:
        return Unsupported.HERE
    return MaxPool(replace(window, round_up=module.ceil_mode))


def _adaptive(module: Any) -> Made:
    sizes = tuples(module.output_size, spatial_dimensions(module) or 0)
    return Unsupported.HERE if None in sizes else AveragePool(outputs=sizes)


def _flatten(start: Any, end: Any) -> Made:
    return Flatten() if (start, end) == (1, -1) else Unsupported.HERE


def _dropout(module: Any) -> Made:
    if module.p == 0:
        return None
    whole = isinstance(module, (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d))
    return Dropout(module.p, whole) if 0 < module.p < 1 else Unsupported.HERE


def _named(name: str) -> Callable[[Any], Made]:
    return lambda module: Nonlinearity(ACTIVATIONS[name])


_RULES: tuple[tuple[Any, Callable[[Any], Made]], ...] = (
    (nn.Identity, lambda module: None),
    (nn.Linear, _linear),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    (nn.GroupNorm, _group_norm),
    (nn.LayerNorm, _layer_norm),
    (nn.RMSNorm, _rms_norm),
    (nn.ReLU, _named("relu")),
    (nn.LeakyReLU, lambda module: Nonlinearity(Rectifier(module.negative_slope, "leaky_relu"))),
    (nn.Tanh, _named("tanh")),
    (nn.GELU, _gelu),
    (nn.SiLU, _named("silu")),
    (nn.Hardswish, _named("hardswish")),
    (nn.Sigmoid, _named("sigmoid")),
    ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _average),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _maximum),
    ((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _adaptive),
    (nn.Flatten, lambda module: _flatten(module.start_dim, module.end_dim)),
    ((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _dropout),
)


def operation_of_call(name: str, node: fx.Node) -> Made:
    """Return the operation of a call.

    Args:
        name: of the function or method.
        node: the call.

    Returns:
        The operation, None for the identity; Unsupported.HERE if there is no closure.
    """
    if name in _NAMED_CALLS:
        return Nonlinearity(ACTIVATIONS[_NAMED_CALLS[name]])
    if name in ("layer_norm", "rms_norm"):
        return _call_norm(name, node)
    rule = _CALL_RULES.get(name)
    if rule is None or (rule not in _TAKE_VALUES and len(node.all_input_nodes) > 1):
        return Unsupported.HERE  # a computed slope or dimension has no value
    return rule(node)


def call_name(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _call_norm(name: str, node: fx.Node) -> Made:
    """Return a layer or root-mean-square normalization called without scale and shift."""
    shape, centred = argument(node, 1, "normalized_shape"), name == "layer_norm"
    weight, bias = argument(node, 2, "weight"), argument(node, 3, "bias") if centred else None
    default = 1e-5 if centred else torch.finfo(torch.float32).eps
    eps = float(argument(node, 4 if centred else 3, "eps") or default)
    if weight is not None or bias is not None or not isinstance(shape, (tuple, list)):
        return Unsupported.HERE
    if not centred and len(shape) > 1:
        return Unsupported.HERE
    return SampleNorm(eps=eps, shape=tuple(shape)) if centred else TokenNorm(eps=eps, centred=False)


def _addition(node: fx.Node) -> Made:
    return Addition() if len(node.args) == 2 and not node.kwargs else Unsupported.HERE


def _call_flatten(node: fx.Node) -> Made:
    return _flatten(argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1))


def _reshape(node: fx.Node) -> Made:
    """Return a flattening for ``x.view(len(x), -1)`` and the like."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return Flatten() if len(sizes) == 2 and sizes[1] == -1 else Unsupported.HERE


def _mean(node: fx.Node) -> Made:
    """Return global pooling for a mean over all positions."""
    dims = argument(node, 1, "dim")
    if dims is None:
        return Unsupported.HERE
    dims = sorted(dim if isinstance(dim, int) else -99 for dim in tuples(dims, 1))
    count = len(dims)
    if dims not in ([*range(2, 2 + count)], [*range(-count, 0)]):
        return Unsupported.HERE
    keep = bool(argument(node, 2, "keepdim", False))
    return AveragePool(outputs=(1,) * count, drop_ones=not keep)


def _as_module(node: fx.Node) -> Made:
    """Return the operation of a function with the same arguments as a module."""
    kind, names = _MODULES_OF_CALLS[call_name(node)]
    given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    return operation_of_module(kind(**{n: given[n] for n in names if n in given}), {})


def _call_dropout(node: fx.Node) -> Made:
    """Return the layer's operation if the function depends on the mode: it is traced in eval mode.

    As for the layer, the theory is that of train mode.
    """
    depends = not argument(node, 2, "training", True)
    return _dropout(nn.Dropout(argument(node, 1, "p", 0.5))) if depends else Unsupported.HERE


_NAMED_CALLS = {name: name for name in ("relu", "tanh", "erf", "silu", "sigmoid", "hardswish")}
_NAMED_CALLS["relu_"] = "relu"
_AVERAGE = (
    *("kernel_size", "stride", "padding", "ceil_mode"),
    *("count_include_pad", "divisor_override"),
)
_LARGEST = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_MODULES_OF_CALLS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "leaky_relu": (nn.LeakyReLU, ("negative_slope",)),
    "gelu": (nn.GELU, ("approximate",)),
    **{f"avg_pool{n}d": (getattr(nn, f"AvgPool{n}d"), _AVERAGE) for n in (1, 2, 3)},
    **{f"max_pool{n}d": (getattr(nn, f"MaxPool{n}d"), _LARGEST) for n in (1, 2, 3)},
    **{
        f"adaptive_avg_pool{n}d": (getattr(nn, f"AdaptiveAvgPool{n}d"), ("output_size",))
        for n in (1, 2, 3)
    },
}  # with the names of the function's arguments after the first, in order
_CALL_RULES: dict[str, Callable[[fx.Node], Made]] = {
    **dict.fromkeys(("add", "iadd", "add_"), _addition),
    **dict.fromkeys(("view", "reshape"), _reshape),
    "flatten": _call_flatten,
    "mean": _mean,
    "contiguous": lambda node: None,
    "dropout": _call_dropout,
    **dict.fromkeys(_MODULES_OF_CALLS, _as_module),
}
_TAKE_VALUES = (_addition, _reshape)  # the other rules have one input, and numbers

_WORDS = {
    "getitem": "an index or slice",
    "matmul": "a product of two activations",
    "bmm": "a product of two activations",
    "einsum": "a product of two activations",
    "mul": "a product of two branches",
    "truediv": "a quotient",
    "cat": "a concatenation",
    "softmax": "a softmax outside of attention",
}


def words_of_call(name: str, node: fx.Node) -> str:
    """Return what a call does in words, for a message."""
    kind = "method" if node.op == "call_method" else "function"
    words = f"the {kind} {name}"
    return f"{_WORDS[name]} ({words})" if name in _WORDS else words
