"""Where norm layers go in a net that has none: after every hidden linear or convolution layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from normscope.errors import InputError
from normscope.layers.call_graph import PLAIN_LAYERS


@dataclass(frozen=True)
class Gap:
    """A place after a hidden layer.

    Attributes:
        container: qualified name of the ``nn.Sequential``.
        key: the layer's key in it.
        layer: the layer.
    """

    container: str
    key: str
    layer: nn.Module

    @property
    def layer_name(self) -> str:
        """Qualified name of the layer."""
        return f"{self.container}.{self.key}" if self.container else self.key


def gaps(model: nn.Module) -> list[Gap]:
    """The places after every linear or convolution layer but the last, the output layer.

    Args:
        model: nested ``nn.Sequential`` containers.

    Returns:
        The places in order of execution.

    Raises:
        InputError: if a layer is inside a module that is no ``nn.Sequential``: its order of
            execution cannot be known.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3)),
    ...                     nn.Linear(3, 1))
    >>> [gap.layer_name for gap in gaps(net)]
    ['0', '2.0']
    """
    found = list(_gaps_in("", model, set()))
    return [gap for gap in found if gap.layer is not found[-1].layer]


def insert(container: nn.Sequential, key: str, norm: nn.Module) -> None:
    """Put a norm layer after a layer, in place.

    Numbered containers are numbered anew, as if written by hand; in one with names, the norm layer
    is named after the layer.

    Args:
        container: where the layer is.
        key: the layer's key.
        norm: the norm layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> insert(net, "0", nn.BatchNorm1d(3))
    >>> [type(module).__name__ for module in net], list(net._modules)
    (['Linear', 'BatchNorm1d', 'ReLU'], ['0', '1', '2'])
    """
    entries = [(name, module) for name, module in container._modules.items() if module is not None]
    numbered = [name for name, _ in entries] == [str(index) for index in range(len(entries))]
    position = [name for name, _ in entries].index(key) + 1
    entries.insert(position, (f"{key}_norm", norm))
    container._modules.clear()
    for index, (name, module) in enumerate(entries):
        container.add_module(str(index) if numbered else name, module)


def _gaps_in(prefix: str, module: nn.Module, seen: set[int]) -> Iterator[Gap]:
    if type(module).forward is not nn.Sequential.forward:
        raise InputError(
            f"{type(module).__name__} {prefix!r} has layers but no norm layers, and is no "
            "nn.Sequential, so convert cannot know where norm layers belong; build the model with "
            'places for them, e.g. normscope.layers.normalization("none", ...).'
        )
    if id(module) in seen:
        return
    seen.add(id(module))
    for key, child in module._modules.items():
        if isinstance(child, PLAIN_LAYERS):
            yield Gap(prefix, key, child)
        elif child is not None and any(isinstance(m, PLAIN_LAYERS) for m in child.modules()):
            yield from _gaps_in(f"{prefix}.{key}" if prefix else key, child, seen)
