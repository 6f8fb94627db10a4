"""The layers of a model in the order in which they run, and what runs before each."""

from __future__ import annotations

import math
from collections import OrderedDict
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

__all__ = ["Layer", "Order", "Watch", "own_parameters", "weight_layers"]


@dataclass(frozen=True)
class Layer:
    """A module that owns weights.

    Args:
        name: its qualified name.
        place: the first use of its parameters, counted over all calls and uses; None if unknown.
        parameters: qualified names of its own trainable parameters.
    """

    name: str
    place: int | None
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
    """When each module of a model is first called, and each parameter first used.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._events = 0
        self._calls: dict[str, int] = {}
        self._uses: dict[str, int] = {}

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        """Note the calls and uses of one forward pass; inside its scene, open while it runs.

        Args:
            watch: sets the hooks.

        Yields:
            Nothing.
        """
        for name, module in self.model.named_modules():
            watch.before(module, partial(self._called, name))
        # by memory: a view, or a tensor of the same data, is a use too
        names = {_memory(parameter): name for name, parameter in self.model.named_parameters()}
        with _Uses(names, self._used):
            yield

    def _called(self, name: str, _: Any) -> None:
        self._note(self._calls, name)

    def _used(self, name: str) -> None:
        self._note(self._uses, name)

    def _note(self, places: dict[str, int], name: str) -> None:
        if name not in places:
            places[name] = self._events
            self._events += 1

    def place(self, name: str) -> int | None:
        """The first call of a module; None if there is none."""
        return self._calls.get(name)

    def layers(self) -> list[Layer]:
        """All layers in the order of their first use, then those that did not run.

        A tied weight belongs to the first layer that runs with it. A layer all of whose weights
        belong to earlier ones is left out.
        """
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        found = []
        taken: set[int] = set()
        for name, module in self._ordered():
            own = [p for p in own_parameters(module) if id(p) not in taken]
            taken |= {id(parameter) for parameter in own}
            if own:
                places = [self._uses[names[id(p)]] for p in own if names[id(p)] in self._uses]
                trainable = tuple(names[id(p)] for p in own if p.requires_grad)
                found.append(Layer(name, min(places, default=None), trainable))
        return sorted(found, key=lambda layer: _last_if_none(layer.place))

    def _ordered(self) -> list[tuple[str, nn.Module]]:
        """The layers by their first call, or use: so that it is told whose a tied weight is."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}

        def place(name: str, module: nn.Module) -> float:
            uses = [self._uses.get(names[id(p)]) for p in own_parameters(module)]
            first = min(map(_last_if_none, uses), default=math.inf)
            return self._calls.get(name, first)

        layers = weight_layers(self.model)
        return sorted(layers.items(), key=lambda each: place(*each))

    def parameter_places(self) -> dict[str, int]:
        """The place at which each parameter is first used, of those that are."""
        return dict(self._uses)


def _last_if_none(place: int | None) -> float:
    return math.inf if place is None else place


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Sees every operation inside, and tells of those that take certain memory."""

    def __init__(self, names: Mapping[int, str], see: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._names = {memory: name for memory, name in names.items() if memory}
        self._see = see

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if self._names:  # each is told once
            for value in (*args, *options.values()):
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    name = self._names.pop(_memory(tensor), None)
                    if name is not None:
                        self._see(name)
        return func(*args, **options)


def _memory(tensor: Any) -> int:
    """Where a tensor's memory begins; 0 for what is no tensor or has none."""
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # such as tensors inside a transform
        return 0


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
