"""Plain copies of models whose parameters are sharded over processes (FSDP, DTensor)."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import ArgumentTypeError, StateError
from normscope.problem.copies import rebind_functions, rebound, refers_to
from normscope.problem.hooks import HOOK_FLAGS, HOOKS, defining_module
from normscope.problem.isolation import MODEL_LOCK
from normscope.problem.loss import WholeLoss
from normscope.problem.wrappers import FSDP_PREFIX, is_distributed, is_sharded

P = ParamSpec("P")
T = TypeVar("T")

_STATE_KEYS = "__composable_api"  # attributes of modules that hold the state of ``fully_shard``
_TRANSLATED = ("model", "loss", "optimizer", "params", "layer")  # arguments of public functions


def gather_shards(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: a sharded model is replaced by a plain copy for the call.

    All processes that share the model must make the same call; each gets the answer on its data.

    Args:
        function: takes ``model``, and maybe ``loss``, ``optimizer``, ``params`` or ``layer``.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        model = args[0] if args else kwargs.get("model")
        if not isinstance(model, nn.Module) or not is_sharded(model):
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        gathered = GatheredModel(model)
        for name in _TRANSLATED:
            if name in bound.arguments:
                bound.arguments[name] = gathered.of(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return call


class GatheredModel:
    """A plain copy of a sharded model: full parameters, without FSDP and the hooks of DTensors.

    All processes that share the model must create it together. Each gets the same copy.

    Args:
        model: sharded by ``FullyShardedDataParallel`` or ``fully_shard``, or with parameters that
            are DTensors; it is not changed.

    Attributes:
        model: the copy.

    Raises:
        ArgumentTypeError: if the model cannot be copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._original = model
        self._flat = _flat_parameters(model)
        try:
            with MODEL_LOCK, _full_parameters(model), torch.no_grad():
                self._copies = _copies_of_tensors(model)
                self.model = _plain_copy(model, self._copies)
        except StateError:
            raise
        except Exception as error:  # what a module holds may raise anything
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ArgumentTypeError(
                f"the sharded model cannot be copied with its full parameters ({reason}); load its "
                "full state into a plain copy of the model, and pass that."
            ) from error

    def of(self, value: Any) -> Any:
        """Return what stands for an argument in a call on the copy.

        Args:
            value: the model, a loss, an optimizer, or names or parameters of the model.

        Returns:
            The same over the copy.

        Raises:
            StateError: if a loss refers to the model by a global name, or if the state of an
                optimizer cannot be gathered.
        """
        if value is self._original:
            return self.model
        if isinstance(value, Optimizer):
            return self._optimizer(value)
        if isinstance(value, str):
            return value.replace(FSDP_PREFIX, "")
        if isinstance(value, list | tuple):
            return [self.of(each) for each in value]
        if isinstance(value, Tensor):
            return self._copies.get(id(value), value)
        if isinstance(value, WholeLoss):
            other = copy.copy(value)
            for name, part in vars(value).items():
                object.__setattr__(other, name, self.of(part))
            return other
        return self._function(value)

    def _function(self, value: Any) -> Any:
        if not refers_to(value, self._original):
            return value
        if isinstance(value, nn.Module):
            return copy.deepcopy(value, self._copies)
        other = rebound(value, self._copies)
        if refers_to(other, self._original):
            raise StateError(
                f"{getattr(value, '__name__', 'the loss')} refers to the sharded model by a global "
                "name, so that it would not see the gathered parameters; use whole_loss, or make "
                "the model an argument."
            )
        return other

    def _optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return a copy over the full parameters, with the full state."""
        if self._flat and any(_tensors(state) for state in optimizer.state.values()):
            raise StateError(
                f"the state of the {type(optimizer).__name__} is sharded by FSDP and cannot be "
                "gathered; pass a factory of optimizers, or learning_rate=, instead."
            )
        clone = type(optimizer).__new__(type(optimizer))
        skipped = ("param_groups", "state", "step", "zero_grad")
        for name, value in vars(optimizer).items():
            if name not in skipped:
                hooks = name.startswith("_optimizer_")
                clone.__dict__[name] = type(value)() if hooks else value
        clone.state = copy.copy(optimizer.state)
        clone.state.clear()
        with torch.no_grad():
            for parameter, state in optimizer.state.items():
                clone.state[self._copies[id(parameter)]] = {
                    name: _full(each) for name, each in state.items()
                }
        clone.param_groups = [
            {**group, "params": [new for old in group["params"] for new in self._parameters(old)]}
            for group in optimizer.param_groups
        ]
        return clone

    def _parameters(self, parameter: Tensor) -> list[Tensor]:
        """Return the full parameters that a parameter of the optimizer holds shards of."""
        found = self._copies.get(id(parameter))
        if found is not None:
            return [found]
        names = self._flat.get(id(parameter))
        if names is None:
            raise StateError(
                "the optimizer holds parameters that are not the model's; make it from "
                "model.parameters(), or pass a factory."
            )
        return [self.model.get_parameter(name) for name in names]


def _full_parameters(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which modules inside FSDP have their full parameters."""
    if not any(_is_fsdp_wrapper(module) for module in model.modules()):
        return nullcontext()
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel.summon_full_params(model, writeback=False)


def _is_fsdp_wrapper(module: nn.Module) -> bool:
    return is_distributed(type(module)) and isinstance(
        module._modules.get("_fsdp_wrapped_module"), nn.Module
    )


def _flat_parameters(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of the parameters that each of FSDP's flat parameters holds, by its id."""
    found: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        handle = getattr(module, "_handle", None) if _is_fsdp_wrapper(module) else None
        if handle is not None:
            prefix = f"{path}.".replace(FSDP_PREFIX, "").removesuffix(FSDP_PREFIX).lstrip(".")
            names = [f"{prefix}{name}".replace(FSDP_PREFIX, "") for name in handle.flat_param._fqns]
            found[id(handle.flat_param)] = names
    return found


def _copies_of_tensors(model: nn.Module) -> dict[int, Any]:
    """Return full copies of the parameters and buffers, by the id of those of the model."""
    copies: dict[int, Any] = {}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or id(tensor) in copies:
                continue
            full = _full(tensor)
            if isinstance(tensor, nn.Parameter):
                full = nn.Parameter(full, tensor.requires_grad)
                full.grad = None if tensor.grad is None else _full(tensor.grad)
            copies[id(tensor)] = full
    return copies


def _full(value: Any) -> Any:
    """Return a copy of a tensor, of all shards of a DTensor; other values as they are."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    own: Any = value.detach()
    return (own.full_tensor() if is_distributed(type(own)) else own).clone()


def _tensors(state: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dim() for each in state.values())


def _plain_copy(model: nn.Module, copies: dict[int, Any]) -> nn.Module:
    """Return a copy without FSDP; ``copies`` also gets all that was copied."""
    modules = list(model.modules())
    for module in modules:
        for value in vars(module).values():
            if type(value).__name__ in ("ProcessGroup", "DeviceMesh"):
                copies[id(value)] = value  # shared, and cannot be copied
        for hook in _distributed_hooks(module):
            copies[id(hook)] = None
    blanks = []
    for module in modules:
        plain = _class_before_sharding(module)
        if plain is not None:
            copies[id(module)] = blank = plain.__new__(plain)
            blanks.append((module, blank))
    for module in reversed(modules):  # the inner ones first
        if _is_fsdp_wrapper(module):
            copies[id(module)] = copy.deepcopy(module._modules["_fsdp_wrapped_module"], copies)
    copied: nn.Module = copy.deepcopy(model, copies)
    for module, blank in blanks:
        kept = {n: each for n, each in vars(module).items() if not str(n).startswith(_STATE_KEYS)}
        blank.__dict__.update(copy.deepcopy(kept, copies))
    for module in copied.modules():
        _drop_hooks(module)
    rebind_functions(copied, model, copies)
    return copied


def _class_before_sharding(module: nn.Module) -> type[nn.Module] | None:
    """Return the class that ``fully_shard`` replaced; None if it did not."""
    kind = type(module)
    index = getattr(kind, "_orig_cls_mro_index", None)
    return kind.__mro__[index] if isinstance(index, int) and is_distributed(kind) else None


def _distributed_hooks(module: nn.Module) -> Iterator[Any]:
    """Yield the hooks by which torch.distributed gathers or distributes tensors."""
    for name in HOOKS:
        for hook in (vars(module).get(name) or {}).values():
            function = hook
            while isinstance(function, functools.partial):
                function = function.func
            owner = type(function.__self__).__module__ if isinstance(function, MethodType) else ""
            if f"{owner or defining_module(function)}.".startswith("torch.distributed."):
                yield hook


def _drop_hooks(module: nn.Module) -> None:
    """Remove the hooks that were copied as None."""
    own = vars(module)
    for name in HOOKS:
        for key in [key for key, hook in (own.get(name) or {}).items() if hook is None]:
            for kept in (name, *HOOK_FLAGS):
                own.get(kept, {}).pop(key, None)
