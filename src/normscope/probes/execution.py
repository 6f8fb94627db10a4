"""Forward hooks, and the layers of a model in the order in which they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.layers.kinds import is_norm


@dataclass(frozen=True)
class Layer:
    """A module that owns weights.

    Args:
        name: its qualified name.
        first_use: position of the first use of its parameters among all calls and uses of the
            forward pass; None if unknown.
        parameters: qualified names of its own trainable parameters.
    """

    name: str
    first_use: int | None
    parameters: tuple[str, ...]


class ForwardHooks:
    """Forward hooks, removed by the isolation context around them.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._is_open = True

    def close(self) -> None:
        """Ignore further calls: a checkpointed part runs forward again in the backward pass."""
        self._is_open = False

    def before_call(self, module: nn.Module, see: Callable[[Any], None]) -> None:
        """Call ``see(input)`` before each call of a module, with its first input."""
        module.register_forward_pre_hook(partial(self._call, see), with_kwargs=True)

    def after_call(self, module: nn.Module, see: Callable[[Any, Any], None]) -> None:
        """Call ``see(input, output)`` after each call of a module, with its first input."""
        module.register_forward_hook(partial(self._call, see), with_kwargs=True)

    def _call(
        self,
        see: Callable[..., None],
        module: nn.Module,
        inputs: tuple[Any, ...],
        options: dict[str, Any],
        *output: Any,
    ) -> None:
        if self._is_open:
            with torch.no_grad():
                see(inputs[0] if inputs else next(iter(options.values()), None), *output)


class ExecutionOrder:
    """Positions at which modules are first called and parameters first used in a forward pass.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.first_calls: dict[str, int] = {}
        self.first_uses: dict[str, int] = {}
        self._events = 0

    @contextmanager
    def record(self, hooks: ForwardHooks) -> Iterator[None]:
        """Record the calls and uses of one forward pass; open while it runs.

        Args:
            hooks: of the same context.
        """
        for name, module in self.model.named_modules():
            hooks.before_call(module, partial(self._record_call, name))
        # By address: a view, or another tensor of the same memory, is a use too.
        names = {_address(parameter): name for name, parameter in self.model.named_parameters()}
        with _FirstUses(names, partial(self._record, self.first_uses)):
            yield

    def _record_call(self, name: str, _: Any) -> None:
        self._record(self.first_calls, name)

    def _record(self, positions: dict[str, int], name: str) -> None:
        if name not in positions:
            positions[name] = self._events
            self._events += 1

    def layers(self) -> list[Layer]:
        """Return all layers in the order of their first use, then those that did not run.

        A tied weight belongs to the first layer that runs with it. A layer whose weights all
        belong to earlier layers is left out.
        """
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        found = []
        taken: set[int] = set()
        for name, module in self._ordered(names):
            own = [p for p in own_parameters(module) if id(p) not in taken]
            taken |= {id(parameter) for parameter in own}
            if own:
                uses = [
                    self.first_uses[names[id(p)]] for p in own if names[id(p)] in self.first_uses
                ]
                trainable = tuple(names[id(p)] for p in own if p.requires_grad)
                found.append(Layer(name, min(uses, default=None), trainable))
        return sorted(found, key=lambda layer: _last_if_none(layer.first_use))

    def _ordered(self, names: Mapping[int, str]) -> list[tuple[str, nn.Module]]:
        """Return the layers by first call, or first use, which decides who owns a tied weight."""

        def position(item: tuple[str, nn.Module]) -> float:
            name, module = item
            uses = [self.first_uses.get(names[id(p)]) for p in own_parameters(module)]
            return self.first_calls.get(name, min(map(_last_if_none, uses), default=math.inf))

        return sorted(weight_layers(self.model).items(), key=position)


def _last_if_none(position: int | None) -> float:
    return math.inf if position is None else position


class _FirstUses(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Calls ``see(name)`` at the first operation that reads each of these addresses."""

    def __init__(self, names: Mapping[int, str], see: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._names = {address: name for address, name in names.items() if address}
        self._see = see

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if self._names:
            for value in (*args, *options.values()):
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    name = self._names.pop(_address(tensor), None)
                    if name is not None:
                        self._see(name)
        return func(*args, **options)


def _address(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0 for anything without one."""
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # such as tensors inside a torch.func transform
        return 0


def weight_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that own a weight matrix, by name; norm layers own none.

    >>> list(weight_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())))
    ['0']
    """
    return {
        name: module
        for name, module in model.named_modules()
        if not (isinstance(module, ParametrizationList) or is_norm(module))
        and any(parameter.dim() > 1 for parameter in own_parameters(module))
    }


def own_parameters(module: nn.Module) -> list[Tensor]:
    """Return a module's own parameters, including those behind parametrizations (weight norm)."""
    own: list[Tensor] = [p for p in module._parameters.values() if p is not None]
    behind = getattr(module, "parametrizations", None)
    return own + (list(behind.parameters()) if isinstance(behind, nn.ModuleDict) else [])
