"""Running a model without side effects: all state it can change is restored."""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from normscope.errors import NormscopeWarning

__all__ = [
    "ONE_AT_A_TIME",
    "Undisturbed",
    "fixed_randomness",
    "generators_of_data",
    "generators_of_model",
    "is_generator",
    "seed_randomness",
    "substituted",
    "surely",
    "undisturbed",
]

# A model that is set up for one measurement must not be seen by another.
ONE_AT_A_TIME = threading.RLock()


@contextmanager
def undisturbed(model: nn.Module, *others: nn.Module) -> Iterator[None]:
    """Put every attribute of every module back on exit, also after an error or Ctrl-C.

    Parameters, buffers and plain attributes come back as the same objects. Meanwhile the modules
    work with copies of their plain tensors, lists and dictionaries; random generators, NumPy arrays
    and bytearrays among the attributes are set back. The contents of parameters and buffers are
    safe only if the model works on other tensors meanwhile: see `substituted`.

    Args:
        model: the model.
        *others: modules that run with it, such as a loss with buffers; of these the buffers are
            copied too.

    Yields:
        Nothing.
    """
    with ONE_AT_A_TIME, Undisturbed(model, *others).held():
        yield


class Undisturbed:
    """What `undisturbed` does, for many times in a row between which nothing else happens.

    The state is looked at once, when this is made, and put back whenever `held` ends.

    Args:
        model: the model.
        *others: as in `undisturbed`.
    """

    def __init__(self, model: nn.Module, *others: nn.Module) -> None:
        own = {id(module): module for module in model.modules()}
        more = {id(module): module for other in others for module in other.modules()}
        self._added = [module for key, module in more.items() if key not in own]
        self._modules = [*own.values(), *self._added]
        self._slots: list[dict[str, Any]] = []
        for module in self._modules:
            self._slots += [module.__dict__, module._parameters, module._buffers]
        self._contents = [dict(slot) for slot in self._slots]
        self._restorers = list(filter(None, map(_state_restorer, _attributes(self._modules))))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Once; inside, the modules may be set up for a measurement."""
        with ONE_AT_A_TIME:
            try:
                _work_on_copies(self._modules, self._added)
                yield
            finally:
                surely(self._restore)

    def _restore(self) -> None:
        for slot, content in zip(self._slots, self._contents, strict=True):
            slot.clear()
            slot.update(content)
        failed = [restorer for restorer in self._restorers if not _done(restorer)]
        if failed:
            warnings.warn(
                f"{len(failed)} NumPy arrays or bytearrays of the model's modules could not be put "
                "back: a forward pass has resized or locked them.",
                NormscopeWarning,
                stacklevel=2,
            )


_MODULE_SLOTS = frozenset(vars(nn.Module()))
_UNCHANGING = frozenset({bool, int, float, str, type(None)})
_LARGEST_ARRAY = 2**24  # bytes; a larger one is data, and not written to
_CONTAINERS = frozenset({list, dict, set, deque, OrderedDict, defaultdict})


def _done(restorer: Callable[[], Any]) -> bool:
    """Whether it could be called; the others are called all the same."""
    try:
        restorer()
    except (ValueError, BufferError):
        return False
    return True


def _plain(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes, but for those that nothing can change in place."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in _MODULE_SLOTS and type(value) not in _UNCHANGING
    }


def _work_on_copies(modules: Iterable[nn.Module], added: Iterable[nn.Module]) -> None:
    copies = _Copies()
    with torch.inference_mode(False), torch.no_grad():
        for module in modules:
            # set in __dict__: a module's own __setattr__ may have effects
            module.__dict__.update({n: copies.of(value) for n, value in _plain(module).items()})
        for module in added:
            buffers: dict[str, Any] = module._buffers
            buffers.update({name: copies.of(tensor) for name, tensor in buffers.items()})


class _Copies:
    """Copies of tensors and containers; what is shared stays shared, parameters stay."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, value: Any) -> Any:
        """A copy of a mutable value, the value itself otherwise."""
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, Tensor):
            self._made[id(value)] = self._of_tensor(value)
        elif type(value) in _CONTAINERS:
            twin = self._made[id(value)] = copy.copy(value)
            if isinstance(twin, set):
                twin.clear()
                twin.update(map(self.of, value))
                return twin
            for place in list(twin) if isinstance(twin, dict) else range(len(twin)):
                twin[place] = self.of(twin[place])
        elif type(value) is tuple:
            parts = tuple(map(self.of, value))
            same = all(one is other for one, other in zip(parts, value, strict=True))
            self._made[id(value)] = value if same else parts
        return self._made.get(id(value), value)

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, nn.Parameter):
            return tensor
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_meta:
            return tensor.detach().clone()
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:  # views of one memory stay views of one
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._storages[storage.data_ptr()] = whole.clone().untyped_storage()
        own, offset = self._storages[storage.data_ptr()], tensor.storage_offset()
        twin = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        twin.set_(own, offset, tensor.size(), tensor.stride())
        return twin.requires_grad_(tensor.requires_grad)


def _attributes(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Plain attributes and what containers among them hold, to any depth, each once."""
    waiting = [value for module in modules for value in _plain(module).values()]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if type(value) in _UNCHANGING or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if type(value) in _CONTAINERS or type(value) is tuple:
            waiting += value.values() if isinstance(value, dict) else value


def _state_restorer(value: Any) -> Callable[[], Any] | None:
    """What sets a generator, array or bytearray back to its present state; None for others."""
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state(legacy=False))
    if is_generator(value):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    if type(value) is bytearray:
        return partial(value.__setitem__, slice(None), bytes(value))
    if type(value) is np.ndarray and value.flags.writeable and value.nbytes <= _LARGEST_ARRAY:
        # in place, not on a copy: other arrays may be views of the same memory
        return partial(_put_back, value, value.copy())
    return None


def _put_back(array: np.ndarray[Any, Any], content: np.ndarray[Any, Any]) -> None:
    if array.shape != content.shape:
        raise ValueError("resized")  # copyto would repeat the content where it can
    np.copyto(array, content)


@contextmanager
def substituted(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the model work with these parameters and buffers in place of its own.

    Its own backward hooks are left out: they belong to training, not to the function, and would
    see (and could change) the derivatives taken here. To be used inside `undisturbed`.

    Args:
        model: the model.
        tensors: by qualified name; a tied parameter under its first name.

    Yields:
        Nothing.
    """
    own = [*model.named_parameters(), *model.named_buffers()]
    other = {id(tensor): tensors[name] for name, tensor in own if name in tensors}
    for module in model.modules():
        # set in __dict__: a module's own __setattr__ may have effects
        module.__dict__["_backward_hooks"] = OrderedDict()
        module.__dict__["_backward_pre_hooks"] = OrderedDict()
        slots: list[dict[str, Any]] = [module._parameters, module._buffers]
        for slot in slots:
            slot.update({name: other[id(t)] for name, t in slot.items() if id(t) in other})
    yield


@contextmanager
def fixed_randomness(
    seed: int, device: torch.device, generators: Iterable[torch.Generator] = ()
) -> Iterator[None]:
    """Make every random draw follow from a seed, and put the generators' states back.

    Args:
        seed: for torch (on the CPU and the device), NumPy, Python's random and ``generators``.
        device: where the model is.
        generators: those that modules or data loaders own.

    Yields:
        Nothing.
    """
    owned = [torch.default_generator, *_device_generators(device), *generators]
    states = [generator.get_state() for generator in owned]
    legacy = (random.getstate(), np.random.get_state())  # noqa: NPY002 - models may draw from it

    def restore() -> None:
        for generator, state in zip(owned, states, strict=True):
            generator.set_state(state)
        random.setstate(legacy[0])
        np.random.set_state(legacy[1])  # noqa: NPY002 - see above

    try:
        seed_randomness(seed, device, generators)
        yield
    finally:
        surely(restore)


def seed_randomness(
    seed: int, device: torch.device, generators: Iterable[torch.Generator] = ()
) -> None:
    """Let every random draw follow from a seed from now on; arguments as in `fixed_randomness`."""
    for generator in (torch.default_generator, *_device_generators(device), *generators):
        generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - models may draw from it


def generators_of_model(model: nn.Module) -> list[torch.Generator]:
    """Generators that modules own, each once, found as attributes."""
    found = (value for module in model.modules() for value in module.__dict__.values())
    return _distinct(value for value in found if is_generator(value))


def is_generator(value: object) -> bool:
    """What ``isinstance(value, torch.Generator)`` says, ten times as fast.

    The class asks a metaclass written in Python; a scene asks it of every attribute of a model.

    Args:
        value: anything.

    Returns:
        Whether it is a random generator of torch.
    """
    return torch.Generator in type(value).__mro__


def generators_of_data(data: object) -> list[torch.Generator]:
    """Generators that a DataLoader shuffles by, each once; of other data none."""
    if not isinstance(data, DataLoader):
        return []
    holders = [data, data.sampler, data.batch_sampler, getattr(data.batch_sampler, "sampler", None)]
    found = (getattr(holder, "generator", None) for holder in holders)
    return _distinct(value for value in found if isinstance(value, torch.Generator))


def _distinct(generators: Iterable[torch.Generator]) -> list[torch.Generator]:
    return list({id(generator): generator for generator in generators}.values())


def _device_generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return []
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.cuda.default_generators[index]]


def surely(action: Callable[[], None]) -> None:
    """Run an action that may be repeated; a Ctrl-C in its middle does not leave it half done."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise
