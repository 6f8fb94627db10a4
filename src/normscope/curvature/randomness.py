"""Random draws that follow from a seed, and generators' states put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

__all__ = [
    "fixed_randomness",
    "generators_of_data",
    "generators_of_model",
    "is_generator",
    "seed_randomness",
    "surely",
]


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
