"""The layers of a model in the order in which they run, and what runs before each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from normscope.layers.detect import is_norm

__all__ = ["Layer", "Order", "Watch", "own_parameters", "weight_layers"]


@dataclass(frozen=True)
class Layer:
    """A module that owns weights.

    Args:
        name: its qualified name.
        place: its first call, counted over all modules' calls.
        parameters: qualified names of its own trainable parameters.
    """

    name: str
    place: int
    parameters: tuple[str, ...]


class Watch:
    """Looks on while the model runs forward; to be made inside a scene, with which it goes.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._open = True
        for module in model.modules():
            for slot in _HOOKS:  # copies: the module's own are put back by the scene
                module.__dict__[slot] = OrderedDict(module.__dict__[slot])

    def close(self) -> None:
        """See no more: a checkpointed part runs forward again during the backward pass."""
        self._open = False

    def before(self, module: nn.Module, see: Callable[[Any], None]) -> None:
        """Show a module's first input before each call."""

        def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
            if self._open:
                with torch.no_grad():
                    see(_first(inputs, options))

        module.register_forward_pre_hook(hook, with_kwargs=True)

    def after(self, module: nn.Module, see: Callable[[Any, Any], None]) -> None:
        """Show a module's first input and its output after each call."""

        def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
            if self._open:
                with torch.no_grad():
                    see(_first(inputs, options), out)

        module.register_forward_hook(hook, with_kwargs=True)


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def _first(inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return inputs[0] if inputs else next(iter(options.values()), None)


class Order:
    """When each module of a model is first called.

    A module that is not called itself takes the place of the nearest one above it that is: such
    as the output projection within torch's MultiheadAttention, whose weights its parent uses.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._calls: dict[str, int] = {}

    def watch(self, watch: Watch) -> None:
        """Count the calls of one forward pass."""
        for name, module in self.model.named_modules():
            watch.before(module, partial(self._called, name))

    def _called(self, name: str, _: Any) -> None:
        self._calls.setdefault(name, len(self._calls))

    def place(self, name: str) -> int | None:
        """The first call of a module or of the nearest one above it; None if there is none."""
        while name not in self._calls:
            if not name:
                return None
            name = name.rpartition(".")[0]
        return self._calls[name]

    def layers(self) -> list[Layer]:
        """The layers that ran, in order; a tied weight belongs to the first that runs with it.

        A layer all of whose weights belong to earlier ones is left out.
        """
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        found = []
        taken: set[int] = set()
        for place, name, module in self._placed(weight_layers(self.model)):
            own = [p for p in own_parameters(module) if id(p) not in taken]
            taken |= {id(parameter) for parameter in own}
            if own:
                trainable = tuple(names[id(p)] for p in own if p.requires_grad)
                found.append(Layer(name, place, trainable))
        return found

    def parameter_places(self) -> dict[str, int]:
        """The place at which each parameter is first used: that of the first module owning it."""
        first: dict[int, int] = {}
        for place, _, module in self._placed(dict(self.model.named_modules())):
            for parameter in module._parameters.values():
                if parameter is not None:
                    first.setdefault(id(parameter), place)
        named = self.model.named_parameters()
        return {name: first[id(p)] for name, p in named if id(p) in first}

    def _placed(self, modules: Mapping[str, nn.Module]) -> list[tuple[int, str, nn.Module]]:
        """Those of the modules that ran, in order; at one place in the order of registration."""
        placed = [(self.place(name), name, module) for name, module in modules.items()]
        known = [(place, name, module) for place, name, module in placed if place is not None]
        return sorted(known, key=lambda each: each[0])


def weight_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that own weights, by name: not the norm layers, whose scale is no matrix.

    >>> list(weight_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())))
    ['0']
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, ParametrizationList) or is_norm(module):
            continue
        if any(parameter.dim() > 1 for parameter in own_parameters(module)):
            found[name] = module
    return found


def own_parameters(module: nn.Module) -> list[Tensor]:
    """A module's own parameters, and those behind its parametrized ones (weight norm, ...)."""
    own: list[Tensor] = [p for p in module._parameters.values() if p is not None]
    behind = getattr(module, "parametrizations", None)
    return own + (list(behind.parameters()) if isinstance(behind, nn.ModuleDict) else [])
