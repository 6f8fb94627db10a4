"""Where norm layers go in a net that has none: after every hidden linear or convolution layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from normscope.errors import InputError
from normscope.layers.tracing import PLAIN_LAYERS, chain_of_calls


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
        model: nested ``nn.Sequential`` containers, and modules whose forward pass calls such
            containers one after the other.

    Returns:
        The places in order of execution.

    Raises:
        InputError: if a layer is inside another module, where its order of execution cannot be
            known or there is no place for a norm layer; if the output layer is a hidden one, too.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3)),
    ...                     nn.Linear(3, 1))
    >>> [gap.layer_name for gap in gaps(net)]
    ['0', '2.0']
    """
    found = list(_gaps_in("", model))
    if any(gap.layer is found[-1].layer for gap in found[:-1]):
        raise InputError(
            f"layer {found[-1].layer_name!r} gives the output and is used before it as well, so "
            "convert cannot put a norm layer after the hidden use alone; give each its own layer."
        )
    unique: dict[tuple[int, str], Gap] = {}  # a container may stand at several places
    for gap in found[:-1]:
        unique.setdefault((id(model.get_submodule(gap.container)), gap.key), gap)
    return list(unique.values())


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


def _gaps_in(prefix: str, module: nn.Module) -> Iterator[Gap]:
    sequential = type(module).forward is nn.Sequential.forward
    names = list(module._modules) if sequential else chain_of_calls(module)
    if names is None:
        raise _no_place(prefix, module)
    for name in names:
        child = module._modules[name] if sequential else module.get_submodule(name)
        if isinstance(child, PLAIN_LAYERS):
            if not sequential:
                raise _no_place(prefix, module)
            yield Gap(prefix, name, child)
        elif child is not None and any(isinstance(m, PLAIN_LAYERS) for m in child.modules()):
            yield from _gaps_in(f"{prefix}.{name}" if prefix else name, child)


def _no_place(prefix: str, module: nn.Module) -> InputError:
    kind = type(module).__name__
    place = f"{kind} {prefix!r}" if prefix else f"the model itself ({kind})"
    return InputError(
        f"{place} has layers but no norm layers, and is no "
        "nn.Sequential nor calls such one after the other, so convert cannot know where norm "
        "layers belong; build the model with places for them, e.g. "
        'normscope.layers.normalization("none", ...).'
    )
