"""How batch statistics enter a measurement: ``train``, ``frozen``, ``eval`` or ``as_is``.

``train``   batch statistics, differentiated through: the function that training descends.
``frozen``  the same forward values, but the statistics are constants for the derivatives.
``eval``    running statistics; dropout and noise are off.
``as_is``   each module by its own ``training`` flag, as ``train`` or as ``eval``: a network with
            some BatchNorm layers in eval mode, as in fine-tuning.

The statistics of layer, group and instance normalization belong to one sample: no mode changes
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from normscope.errors import InputError, StateError
from normscope.problem.global_state import FunctionMode
from normscope.problem.wrappers import run_unwrapped
from normscope.registry import unknown_name

MODES = ("train", "frozen", "eval", "as_is")
"""The modes a model can be measured in."""

EVAL_MODE_MESSAGE = (
    "the model is in eval mode and is measured as it is, with running statistics and without "
    "dropout; call model.train() first, or use mode='train'."
)
"""For a warning about mode "as_is"."""

_BATCH_NORM_ATTRIBUTES = ("num_features", "eps", "momentum", "running_mean", "running_var")


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether the module is batch normalization: torch's, ours, a subclass or a look-alike.

    An unknown class counts if it has what such a layer needs to switch between batch and running
    statistics (``num_features``, ``eps``, ``momentum``, ``running_mean``, ``running_var``). A
    frozen layer, which has no ``momentum``, does not.

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
    alike = all(hasattr(module, name) for name in _BATCH_NORM_ATTRIBUTES)
    return alike and not isinstance(module, _InstanceNorm)


def refuse_lazy(module: nn.Module) -> None:
    """Raise `StateError` if the module is a lazy layer that has not seen any input."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise StateError(
            f"{type(module).__name__} does not know its shape yet; "
            "pass one batch through the model first."
        )


@dataclass
class _FastDerivatives:
    """Replacements with the same values and cheaper second derivatives."""

    layers: Callable[[nn.Module, bool], None] = lambda model, norms: None
    constant_norm: Callable[..., Tensor | None] = lambda *arguments: None


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


def check_mode(mode: str) -> None:
    """Raise `UnknownNameError` if there is no such mode."""
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)


def training_flags(model: nn.Module, mode: str) -> dict[str, bool]:
    """Return the ``training`` flag of every module in a mode, by qualified name.

    Args:
        model: the model.
        mode: "train", "frozen", "eval" or "as_is".

    Raises:
        UnknownNameError: if there is no such mode.

    >>> training_flags(nn.Sequential(nn.BatchNorm1d(2).eval()), "as_is")
    {'': True, '0': False}
    """
    check_mode(mode)
    named = model.named_modules()
    return {name: module.training if mode == "as_is" else mode != "eval" for name, module in named}


def is_in_eval_mode(model: nn.Module) -> bool:
    """Return whether no module is in train mode.

    >>> is_in_eval_mode(nn.Sequential(nn.BatchNorm1d(2).eval()))
    False
    """
    return not any(module.training for module in model.modules())


def set_flags(model: nn.Module, flags: Mapping[str, bool]) -> None:
    """Set the ``training`` flag of every module; the model's ``train()`` method is not called."""
    for name, module in model.named_modules():
        module.__dict__["training"] = flags.get(name, module.training)


@contextmanager
def in_mode(
    model: nn.Module, mode: str, twice: bool = True, flags: Mapping[str, bool] | None = None
) -> Iterator[None]:
    """Set the model up for a mode; use it inside `isolated`, which restores the model.

    Every module runs as by `run_unwrapped`.

    Args:
        model: the model.
        mode: "train", "frozen", "eval" or "as_is".
        twice: whether gradients are differentiated again.
        flags: what `training_flags` returned before; None: its present answer.

    Yields:
        Nothing.
    """
    set_flags(model, training_flags(model, mode) if flags is None else flags)
    run_unwrapped(model)
    if twice:
        _FAST.layers(model, mode != "frozen")  # frozen mode replaces norm layers itself
    with _freeze_statistics(model) if mode == "frozen" else nullcontext():
        yield


def _freeze_statistics(model: nn.Module) -> _ConstantStatistics:
    """Let norm layers take their batch's statistics as constants inside the returned context.

    A layer class may define ``freeze_statistics(input)``, which is called before every forward
    pass: to hold its statistics itself, or to make sure that it calls torch's batch_norm.
    """
    constants = _ConstantStatistics()
    for name, module in model.named_modules():
        own: Callable[..., Any] = module.forward
        call = own
        if is_batch_norm(module):
            call = functools.partial(_checked_forward, name, module, own, constants)
        if hasattr(module, "freeze_statistics"):
            call = functools.partial(_frozen_forward, module, call)
        if call is not own:
            module.__dict__["forward"] = call  # found before the class's own
    return constants


def _frozen_forward(module: Any, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    module.freeze_statistics(*inputs, **options)
    return forward(*inputs, **options)


def _checked_forward(
    name: str,
    module: nn.Module,
    forward: Callable[..., Any],
    constants: _ConstantStatistics,
    *inputs: Any,
    **options: Any,
) -> Any:
    """Run a layer, which must call torch's batch_norm: else its statistics were not frozen."""
    before = constants.calls
    with constants:  # once more: a checkpointed part is recomputed outside of every mode
        output = forward(*inputs, **options)
    if constants.calls == before:
        raise StateError(
            f"mode='frozen' cannot hold the statistics of {name!r} ({type(module).__name__}): it "
            "does not normalize by torch's batch_norm; use mode='train' or 'eval'."
        )
    return output


class _ConstantStatistics(FunctionMode):
    """Inside, batch normalization takes its batch's statistics as constants.

    Every call of torch's batch_norm that would use batch statistics is changed, whether a layer of
    torch, a subclass or user code makes it: a module called twice has two sets of constants.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Normalize by constants; call any other function as it is."""
        names = _ARGUMENTS.get(function)
        if names is None:
            return function(*args, **options)
        self.calls += 1
        given = dict(zip(names, args, strict=False)) | options
        if not given.get("training"):
            return function(**given)
        return _normalize_by_constants(function, given)


def _normalize_by_constants(func: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a batch_norm function with the detached statistics of its input."""
    x, eps = given["input"], given.get("eps", 1e-5)  # torch's default
    mean, variance = _batch_statistics(x)
    returns_output_only = func in (functional.batch_norm, torch.batch_norm)
    if returns_output_only:
        affine = given.get("weight"), given.get("bias")
        fast = _FAST.constant_norm(x, *affine, mean, variance, eps)
        if fast is not None:
            return fast
    if x.dtype != mean.dtype:  # statistics in float32 need everything in it
        for name in ("input", "weight", "bias"):
            given[name] = None if given.get(name) is None else given[name].float()
    result = func(**given | {"running_mean": mean, "running_var": variance, "training": False})
    if returns_output_only:
        return result.to(x.dtype)
    return result[0].to(x.dtype), mean, torch.rsqrt(variance + eps), *result[3:]


# the functions that normalize by a batch, with their arguments in order
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


def _batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and 1/m variance per channel, detached, in float32 at least."""
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
