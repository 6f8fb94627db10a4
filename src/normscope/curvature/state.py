"""Looking at a model without touching it: all that a forward pass changes is put back."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

__all__ = [
    "fixed_randomness",
    "generators_of_data",
    "generators_of_model",
    "substituted",
    "undisturbed",
]


# A model that is set up for one measurement must not be seen by another.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put every attribute of every module back on exit, also after an error or Ctrl-C.

    Parameters, buffers and plain attributes that were set anew come back as the same objects.
    Their contents are safe only if the model works on other tensors meanwhile: see `substituted`.

    Args:
        model: the model.

    Yields:
        Nothing.
    """
    with _ONE_AT_A_TIME:
        yield from _restored_after(model)


def _restored_after(model: nn.Module) -> Iterator[None]:
    slots: list[dict[str, Any]] = []
    for module in model.modules():
        slots += [module.__dict__, module._parameters, module._buffers]
    contents = [dict(slot) for slot in slots]

    def restore() -> None:
        for slot, content in zip(slots, contents, strict=True):
            slot.clear()
            slot.update(content)

    try:
        yield
    finally:
        _surely(restore)


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
        for generator in owned:
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - see above
        yield
    finally:
        _surely(restore)


def generators_of_model(model: nn.Module) -> list[torch.Generator]:
    """Generators that modules own, each once, found as attributes."""
    found = (value for module in model.modules() for value in module.__dict__.values())
    return _distinct(value for value in found if isinstance(value, torch.Generator))


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


def _surely(action: Callable[[], None]) -> None:
    """Run an action that may be repeated; a Ctrl-C in its middle does not leave it half done."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise
