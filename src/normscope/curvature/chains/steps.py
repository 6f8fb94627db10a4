"""The modules that a sequential network runs one after the other."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from normscope.problem.hooks import has_global_hooks, has_hooks, has_own_call
from normscope.problem.tracing import trace

#: qualified name of a module (empty for a function replaced by a module), and the module
Step: TypeAlias = tuple[str, nn.Module]


class NotAChainError(Exception):
    """Why a model cannot be read as a chain; never raised outside this package."""


class Reshape(nn.Module):
    """The same entries in another shape, samples first.

    Args:
        shape: the new one; None means the number of samples.
    """

    def __init__(self, *shape: int | None) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the tensor in the new shape."""
        return inputs.reshape([len(inputs) if size is None else size for size in self.shape])


class Average(nn.Module):
    """The mean over some dimensions.

    Args:
        dim: the dimensions.
        keepdim: whether they are kept, with size one.
    """

    def __init__(self, dim: int | tuple[int, ...] | list[int], keepdim: bool = False) -> None:
        super().__init__()
        self.dim, self.keepdim = dim, keepdim

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the mean."""
        return inputs.mean(self.dim, self.keepdim)


def steps_of(model: nn.Module, is_known: Callable[[nn.Module], bool]) -> tuple[list[Step], bool]:
    """Return the modules that a model runs in turn, each on the output of the one before.

    Args:
        model: an isolated model; its forward may be traced.
        is_known: whether a module is one step.

    Returns:
        The steps, and whether they are certain: a tree of `nn.Sequential` does nothing else, but
        a traced forward may contain operations that act on derivatives only.

    Raises:
        NotAChainError: if the model does anything else.
    """
    flattened = _flattened("", model, is_known)
    steps = _traced(model, is_known) if flattened is None else flattened
    modules = [id(module) for _, module in steps]
    if len(set(modules)) < len(modules):
        raise NotAChainError("a module runs twice")
    return steps, flattened is not None


def refuse_hooks(model: nn.Module) -> None:
    """Raise `NotAChainError` if hooks or replaced methods may change what a module computes."""
    if has_global_hooks():
        raise NotAChainError("there are global module hooks")
    for name, module in model.named_modules():
        if has_hooks(module) or has_own_call(module):
            raise NotAChainError(f"{name!r} has hooks, or its forward is replaced or compiled")


def _flattened(
    name: str, module: nn.Module, is_known: Callable[[nn.Module], bool]
) -> list[Step] | None:
    """Return the leaves of a tree of `nn.Sequential`; None if there is another container."""
    if is_known(module):
        return [(name, module)]
    if type(module).forward is not nn.Sequential.forward or len(module._modules) == 0:
        return None
    steps: list[Step] = []
    for child_name, child in module.named_children():
        below = _flattened(f"{name}.{child_name}" if name else child_name, child, is_known)
        if below is None:
            return None
        steps += below
    if len(list(module.named_children())) < len(module._modules):
        return None  # the same child twice
    return steps


def _traced(model: nn.Module, is_known: Callable[[nn.Module], bool]) -> list[Step]:
    """Return the steps of a forward without branches."""
    calls = trace(model, is_known)
    if calls is None:
        raise NotAChainError("its forward cannot be traced")
    modules = dict(model.named_modules())
    steps: list[Step] = []
    current: fx.Node | None = None
    for node in calls[0].nodes:
        if node.op == "placeholder" and current is None:
            current = node
        elif node.op == "output" and node.args == (current,):
            return steps
        elif current is not None and _is_size(node, current):
            continue
        elif current is not None and node.args and node.args[0] is current:
            steps.append(_step(node, current, modules))
            current = node
        else:
            break
    raise NotAChainError("its forward has branches")


def _step(node: fx.Node, current: fx.Node, modules: Mapping[str, nn.Module]) -> Step:
    options = node.args[1:]
    if node.op == "call_module" and not options and not node.kwargs:
        return str(node.target), modules[str(node.target)]
    if node.op == "call_method" and node.target in ("view", "reshape"):
        sizes = options[0] if options and isinstance(options[0], tuple | list) else options
        return "", Reshape(*(_size(size, current) for size in sizes))
    make = _MODULES.get(node.target) if node.op in ("call_function", "call_method") else None
    if make is None or current in node.all_input_nodes[1:] or len(node.all_input_nodes) > 1:
        raise NotAChainError(f"{node.target} is not known")
    try:
        arguments = inspect.signature(make).bind(*options, **node.kwargs)
    except TypeError as error:
        raise NotAChainError(f"{node.target} is called with other arguments") from error
    return "", make(*arguments.args, **arguments.kwargs)


def _is_size(node: fx.Node, current: fx.Node) -> bool:
    """Return whether a node is the shape of the current value, or an entry of it."""
    of_current = bool(node.args) and node.args[0] is current
    if node.op == "call_method" and node.target == "size":
        return of_current and not node.kwargs
    if node.op == "call_function" and node.target is getattr:
        return of_current and node.args[1] == "shape"
    if node.op == "call_function" and node.target is operator.getitem:
        shape = node.args[0]
        return isinstance(shape, fx.Node) and _is_size(shape, current)
    return False


def _size(size: Any, current: fx.Node) -> int | None:
    """Return a constant size; None for the number of samples of the current value."""
    if isinstance(size, int):
        return size
    if isinstance(size, fx.Node) and _is_size(size, current) and size.args[1:] == (0,):
        return None
    raise NotAChainError("a reshape depends on the shape in an unknown way")


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    return nn.Dropout(p) if training else nn.Identity()


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _max_pool(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def make(
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> nn.Module:
        return kind(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    return make


# functions and methods of tensors, and the module that does the same with the same arguments
_MODULES: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((functional.relu, torch.relu, "relu"), nn.ReLU),
    **dict.fromkeys((functional.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((functional.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    **dict.fromkeys((torch.mean, "mean"), Average),
    functional.gelu: nn.GELU,
    functional.silu: nn.SiLU,
    functional.mish: nn.Mish,
    functional.relu6: nn.ReLU6,
    functional.selu: nn.SELU,
    functional.softplus: nn.Softplus,
    functional.leaky_relu: nn.LeakyReLU,
    functional.elu: nn.ELU,
    functional.dropout: _dropout,
    functional.max_pool1d: _max_pool(nn.MaxPool1d),
    functional.max_pool2d: _max_pool(nn.MaxPool2d),
    functional.max_pool3d: _max_pool(nn.MaxPool3d),
    functional.avg_pool1d: nn.AvgPool1d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.avg_pool3d: nn.AvgPool3d,
    functional.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    functional.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d,
}
