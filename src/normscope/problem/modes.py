"""How a model's batch statistics enter a measurement: ``train``, ``frozen`` or ``eval``.

``train``   batch statistics, derivatives flow through them: the function that training descends.
``frozen``  the same forward values, but the statistics are constants for the derivatives.
``eval``    running statistics; dropout and noise are off.

Layer, group and instance normalization have statistics of one sample, which belong to the
function: no mode touches them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

from normscope.errors import InputError, StateError
from normscope.registry import unknown_name

__all__ = ["MODES", "in_mode", "is_batch_norm", "refuse_lazy", "use_fast_derivatives"]

MODES = ("train", "frozen", "eval")

_BATCH_NORM_MARKS = ("num_features", "eps", "momentum", "running_mean", "running_var")


def is_batch_norm(module: nn.Module) -> bool:
    """Whether the module is batch normalization: torch's, ours, a subclass or a look-alike.

    A class not known here counts if it carries what such a layer needs in order to switch between
    batch and running statistics (``num_features``, ``eps``, ``momentum``, ``running_mean``,
    ``running_var``). A frozen layer, which has no ``momentum``, does not.

    Args:
        module: any module.

    Returns:
        True if it subtracts the batch mean and divides by the batch standard deviation in training.

    Raises:
        StateError: if it is a lazy layer that does not know its channels yet.

    >>> is_batch_norm(nn.SyncBatchNorm(3)), is_batch_norm(nn.InstanceNorm2d(3))
    (True, False)
    """
    if isinstance(module, _BatchNorm):
        refuse_lazy(module)
        return True
    marked = all(hasattr(module, mark) for mark in _BATCH_NORM_MARKS)
    return marked and not isinstance(module, _InstanceNorm)


def refuse_lazy(module: nn.Module) -> None:
    """Raise if the module is a lazy layer that has not seen any input.

    Args:
        module: any module.

    Raises:
        StateError: if it does not know its shape yet.
    """
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise StateError(
            f"{type(module).__name__} does not know its shape yet; "
            "pass one batch through the model first."
        )


@dataclass
class _FastDerivatives:
    """Replacements with the same values and cheaper second derivatives, or None."""

    layers: Callable[[nn.Module, bool], None] | None = None
    constant_norm: Callable[..., Tensor | None] | None = None


_FAST = _FastDerivatives()


def use_fast_derivatives(
    layers: Callable[[nn.Module, bool], None], constant_norm: Callable[..., Tensor | None]
) -> None:
    """Register layers whose gradients are cheap to differentiate; `normscope.curvature` does.

    Args:
        layers: called as ``layers(model, norms)`` before a model is differentiated twice; replaces
            the forward pass of modules, and of batch norm layers only if ``norms``.
        constant_norm: called as ``constant_norm(x, weight, bias, mean, variance, eps)`` to
            normalize by constants; returns None if it cannot.
    """
    _FAST.layers, _FAST.constant_norm = layers, constant_norm


@contextmanager
def in_mode(model: nn.Module, mode: str, twice: bool = True) -> Iterator[None]:
    """Set the model up for a mode; to be used inside `undisturbed`, which puts it back.

    The ``training`` flag of every module is set, whatever it was; a ``train()`` method of the
    model's own is not called.

    Args:
        model: the model.
        mode: "train", "frozen" or "eval".
        twice: whether gradients are differentiated again.

    Yields:
        Nothing.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    for module in model.modules():
        module.__dict__["training"] = mode != "eval"
        own_forward = type(module).forward is not nn.SyncBatchNorm.forward  # a subclass may
        if isinstance(module, nn.SyncBatchNorm) and not (own_forward or _synchronizes(module)):
            # its own forward refuses CPU tensors once torch.distributed is initialized
            _replace_forward(module, functools.partial(_BatchNorm.forward, module))
    if twice and _FAST.layers is not None:
        _FAST.layers(model, mode != "frozen")  # frozen mode replaces norm layers below
    with ExitStack() as stack:
        if mode == "frozen":
            constants = _ConstantStatistics()
            _freeze_layers(model, constants)
            stack.enter_context(constants)
        yield


class _ConstantStatistics(TorchFunctionMode):
    """Inside, batch normalization takes its batch's statistics as constants.

    Every call of torch's batch_norm that would use batch statistics is changed, be it made by a
    layer of torch, by a subclass, or directly: a module called twice has two sets of constants.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        names = _ARGUMENTS.get(func)
        if names is None:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        if not given.get("training"):
            return func(**given)
        x = given["input"]
        mean, variance = _batch_statistics(x)
        eps = given.get("eps", 1e-5)  # torch's default
        if func in _PLAIN and _FAST.constant_norm is not None:
            affine = given.get("weight"), given.get("bias")
            if (fast := _FAST.constant_norm(x, *affine, mean, variance, eps)) is not None:
                return fast
        if x.dtype != mean.dtype:  # statistics in float32 need everything in it
            given |= {name: _widened(given.get(name)) for name in ("input", "weight", "bias")}
        result = func(**given | {"running_mean": mean, "running_var": variance, "training": False})
        if x.dtype != mean.dtype:
            result = (
                result.to(x.dtype)
                if isinstance(result, Tensor)
                else (result[0].to(x.dtype), *result[1:])
            )
        if isinstance(result, Tensor):
            return result
        # the inner entry points return their batch's statistics too
        return result[0], mean, torch.rsqrt(variance + given["eps"]), *result[3:]


_PLAIN = (functional.batch_norm, torch.batch_norm)  # return the output alone
# the entry points to batch normalization with their arguments in order
_NATIVE = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_ARGUMENTS: dict[Callable[..., Any], tuple[str, ...]] = {
    functional.batch_norm: (
        *("input", "running_mean", "running_var", "weight", "bias"),
        *("training", "momentum", "eps"),
    ),
    torch.batch_norm: (*_NATIVE, "cudnn_enabled"),
    torch._batch_norm_impl_index: (*_NATIVE, "cudnn_enabled"),
    torch.native_batch_norm: _NATIVE,
}


def _widened(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1/m variance per channel, detached, in float32 at least."""
    dims = [dim for dim in range(x.dim()) if dim != 1]
    if x.numel() <= x.shape[1]:
        raise InputError(
            f"batch statistics need more than one value per channel, got an input of shape "
            f"{tuple(x.shape)}; give a larger batch or use mode='eval'."
        )
    x = x.detach()
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dims, correction=0)
    return mean, variance


def _freeze_layers(model: nn.Module, constants: _ConstantStatistics) -> None:
    for name, module in model.named_modules():
        if is_batch_norm(module):
            _replace_forward(
                module, functools.partial(_watched, name, module, module.forward, constants)
            )
        elif hasattr(module, "freeze_statistics"):
            _replace_forward(module, functools.partial(_frozen, module, module.forward))


def _frozen(module: Any, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A layer that holds its statistics itself, at each call anew."""
    module.freeze_statistics(x)
    return forward(x)


def _watched(
    name: str,
    module: Any,
    forward: Callable[..., Tensor],
    constants: _ConstantStatistics,
    *inputs: Any,
    **options: Any,
) -> Tensor:
    """The layer's own forward, which must reach batch_norm, or its statistics were not frozen."""
    if hasattr(module, "freeze_statistics"):
        module.freeze_statistics(*inputs, **options)
    before = constants.calls
    with constants:  # once more: a checkpointed part is recomputed where no mode reaches
        output = forward(*inputs, **options)
    if constants.calls == before:
        raise StateError(
            f"mode='frozen' cannot hold the statistics of {name!r} ({type(module).__name__}): it "
            "does not normalize by torch's batch_norm; use mode='train' or 'eval'."
        )
    return output


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.__dict__["forward"] = forward  # found before the class's own


def _synchronizes(module: nn.SyncBatchNorm) -> bool:
    """Whether the layer would talk to other processes in training."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return ready and torch.distributed.get_world_size(module.process_group) > 1
