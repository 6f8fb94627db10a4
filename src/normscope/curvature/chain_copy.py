"""A copy of a model that can be run and traced without any effect on the model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

__all__ = ["private_copy"]

_CONTAINERS = (list, dict, set, OrderedDict)  # among them those of parameters and buffers


def private_copy(model: nn.Module, training: bool, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The same modules as other objects, whose attributes can change without the model's.

    Args:
        model: any module.
        training: the flag of every module of the copy.
        tensors: parameters and buffers by qualified name, instead of the model's, none of which
            may have two names; buffers are copied, since a forward pass may change them.

    Returns:
        The copy.
    """
    copies: dict[int, nn.Module] = {}

    def copied(module: nn.Module) -> nn.Module:
        if id(module) in copies:
            return copies[id(module)]
        copy = copies[id(module)] = object.__new__(type(module))
        copy.__dict__.update(
            (name, value.copy() if type(value) in _CONTAINERS else value)
            for name, value in module.__dict__.items()
        )
        copy.__dict__["training"] = training
        children = module._modules.items()
        copy.__dict__["_modules"] = {n: c if c is None else copied(c) for n, c in children}
        return copy

    copy = copied(model)
    for path, module in copy.named_modules():
        prefix = f"{path}." if path else ""
        # plain tensors serve a forward pass as well as parameters do
        module.__dict__["_parameters"].update(
            (name, tensors[prefix + name])
            for name, own in module._parameters.items()
            if own is not None
        )
        module._buffers.update(
            (name, tensors[prefix + name].clone())
            for name, own in module._buffers.items()
            if own is not None
        )
    return copy
