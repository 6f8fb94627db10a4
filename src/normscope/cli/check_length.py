"""How long ``normscope check`` will be at work on a model, told before it begins."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.cli.check_part import part_size
from normscope.cli.time_left import in_words
from normscope.theorems.layer import DENSE_LIMIT, UNITS

__all__ = ["Layer", "note_length", "products"]

_LONG = 60.0  # seconds: what is over sooner needs no warning
_PASSES = 5  # forward passes that a product, a derivative of a gradient, is worth


@dataclass(frozen=True)
class Layer:
    """Sizes of a batch normalization.

    Args:
        units: or channels.
        positions: values of a unit in one sample.
    """

    units: int
    positions: int


def products(layer: Layer, samples: int) -> dict[int, int]:
    """How many products with a Hessian the exact forms take on a layer, by the samples of each.

    Args:
        layer: its sizes.
        samples: in the batch.

    Returns:
        Numbers. Theorem C.1 makes a matrix for each unit, which is one for each of its values, and
        is put to a part of the batch where all of it is too large, with the other statements.

    >>> products(Layer(units=64, positions=64), samples=256)  # two samples have 128 values
    {256: 34, 2: 1066}
    """
    chosen = min(UNITS, layer.units)
    plain = 4 * chosen + 2  # of each unit by itself, and of all in sum
    values = samples * layer.positions
    part = samples if values <= DENSE_LIMIT else part_size(samples, values)
    if part * layer.positions > DENSE_LIMIT:
        return {samples: plain}
    return {samples: plain, part: plain + chosen * (part * layer.positions + 1)}


def note_length(
    network: nn.Module,
    batch: Any,
    names: Sequence[str],
    smaller: str,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Say on stderr that a check will be long, if so, and how it would be shorter.

    By forward passes on a copy of the model, one for each number of samples that it will be run on:
    a product goes through what comes after its layer, forth and back.

    Args:
        network: the model; nothing of it is changed.
        batch: inputs and targets; of another kind nothing is said.
        names: of the layers to be checked.
        smaller: how a smaller batch is asked for; its size follows.
        clock: tells the seconds.
    """
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or sys.stderr is None:
        return
    seconds = _expected(network, inputs.double(), names, clock)
    if seconds < _LONG:
        return
    ways = [f"choose one of the {len(names)} layers by --layer"] if len(names) > 1 else []
    fewer = max(len(inputs) // 8, 2)
    # Theorem C.1 is put to a few samples anyway, and may be the most of it
    if _expected(network, inputs[:fewer].double(), names, clock) < seconds / 2:
        ways.append(f"{smaller} {fewer}")
    remedy = f"; for less, {', or '.join(ways)}" if ways else ""
    print(
        f"normscope: note: this may take about {in_words(seconds)}{remedy}.",
        file=sys.stderr,
    )


def _expected(
    network: nn.Module, inputs: Tensor, names: Sequence[str], clock: Callable[[], float]
) -> float:
    """Seconds, roughly; 0 where the model cannot be run on its own, which the check will tell."""
    try:
        twin = copy.deepcopy(network).double().train()
        seen = _pass(twin, inputs, names, clock)
        needed = {name: products(seen[name][0], len(inputs)) for name in names}
        sizes = {size for each in needed.values() for size in each}
        passes = {size: _pass(twin, inputs[:size], names, clock) for size in sizes}
    except Exception:  # a foreign forward: whatever it raises, the check itself shows it
        return 0.0
    rests = (
        count * passes[size][name][1]
        for name, each in needed.items()
        for size, count in each.items()
    )
    return _PASSES * sum(rests)


def _pass(
    network: nn.Module, inputs: Tensor, names: Sequence[str], clock: Callable[[], float]
) -> dict[str, tuple[Layer, float]]:
    """Of each layer in one pass its sizes, and the seconds of what comes after it."""
    found: dict[str, tuple[Layer, float]] = {}

    def look(name: str, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        found[name] = Layer(output.shape[1], output[0, 0].numel()), clock()

    modules = dict(network.named_modules(remove_duplicate=False))
    handles = [modules[name].register_forward_hook(partial(look, name)) for name in names]
    device = next((each.device for each in network.parameters()), inputs.device)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        network(inputs.to(device, copy=True))  # it may be overwritten
    end = clock()
    for handle in handles:
        handle.remove()
    return {name: (layer, end - begun) for name, (layer, begun) in found.items()}
