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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from normscope.curvature.constant_norm_graph import constant_norm
from normscope.curvature.twice import constant_norm_serves, differentiate_twice_fast
from normscope.errors import InputError, StateError
from normscope.layers.batch_norm import _ClosedFormBatchNorm
from normscope.layers.detect import is_batch_norm, is_lp_norm
from normscope.registry import unknown_name

__all__ = ["MODES", "in_mode"]

MODES = ("train", "frozen", "eval")


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
    if twice:
        differentiate_twice_fast(model, norms=mode != "frozen")  # which has its own below
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
        if func in _PLAIN and constant_norm_serves(x, mean, variance, eps):
            return constant_norm(x, given.get("weight"), given.get("bias"), mean, variance, eps)
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
        if is_lp_norm(module):
            _replace_forward(module, functools.partial(_frozen_lp_norm, module, module.forward))
        elif is_batch_norm(module):
            if isinstance(module, _ClosedFormBatchNorm):
                module.__dict__["fused"] = True  # the closed form does not pass by batch_norm
            _replace_forward(
                module, functools.partial(_watched, name, module, module.forward, constants)
            )


def _watched(
    name: str,
    module: nn.Module,
    forward: Callable[..., Tensor],
    constants: _ConstantStatistics,
    *inputs: Any,
    **options: Any,
) -> Tensor:
    """The layer's own forward, which must reach batch_norm, or its statistics were not frozen."""
    before = constants.calls
    with constants:  # once more: a checkpointed part is recomputed where no mode reaches
        output = forward(*inputs, **options)
    if constants.calls == before:
        raise StateError(
            f"mode='frozen' cannot hold the statistics of {name!r} ({type(module).__name__}): it "
            "does not normalize by torch's batch_norm; use mode='train' or 'eval'."
        )
    return output


def _frozen_lp_norm(module: Any, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An l_p layer with the mean and scale of this input as constants."""
    mean, scale = _lp_statistics(x.detach(), module.p, module.centred, module.eps)
    # evaluation mode applies the running statistics as they are; set anew at each call, since an
    # earlier call's tensors are saved for its backward pass
    module.__dict__["training"] = False
    module._buffers.update(running_mean=mean, running_scale=scale)
    return forward(x)


def _lp_statistics(x: Tensor, p: float, centred: bool, eps: float) -> tuple[Tensor, Tensor]:
    dims = [dim for dim in range(x.dim()) if dim != 1]
    mean = _batch_statistics(x)[0]
    wide = x.to(mean.dtype)
    if centred:
        wide = wide - mean.view([-1 if dim == 1 else 1 for dim in range(x.dim())])
    if p == torch.inf:
        return mean, wide.abs().amax(dims) + eps
    return mean, (wide.abs().pow(p).mean(dims) + eps) ** (1 / p)


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.__dict__["forward"] = forward  # found before the class's own


def _synchronizes(module: nn.SyncBatchNorm) -> bool:
    """Whether the layer would talk to other processes in training."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return ready and torch.distributed.get_world_size(module.process_group) > 1
