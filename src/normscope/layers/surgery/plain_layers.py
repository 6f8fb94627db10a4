"""Linear and convolution layers: which modules are such layers, and their sizes."""

from __future__ import annotations

from torch import nn

from normscope.problem.hooks import defining_module

Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | Transposed
Layer = nn.Linear | Convolution
"""Classes of plain layers; a subclass may compute something else: see `is_plain_layer`."""


def is_plain_layer(module: nn.Module) -> bool:
    """Return whether the module computes what torch's linear or convolution layer does.

    Args:
        module: any module.

    Returns:
        False also for a subclass with another forward pass.

    >>> is_plain_layer(nn.Conv2d(1, 1, 1)), is_plain_layer(nn.ReLU())
    (True, False)
    """
    if not isinstance(module, Layer) or "forward" in vars(module):
        return False
    methods = [getattr(type(module), name, None) for name in ("forward", "_conv_forward")]
    return all(
        method is None or defining_module(method).startswith("torch.nn.") for method in methods
    )


def out_channels(layer: Layer) -> int:
    """Return the number of output channels of the layer."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def in_channels(layer: Layer) -> int:
    """Return the number of input channels of the layer."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def spatial_dimensions(module: nn.Module) -> int | None:
    """Return the dimensions in the class name of a layer, torch's or ours; None if there are none.

    Args:
        module: a norm or convolution layer.

    Returns:
        1, 2 or 3; layers for vectors have 1.

    >>> spatial_dimensions(nn.BatchNorm2d(3)), spatial_dimensions(nn.SyncBatchNorm(3))
    (2, None)
    """
    for base in type(module).__mro__:
        if base.__module__.startswith(("torch.nn.", "normscope.layers.")):
            digit = base.__name__[-2:-1]
            if base.__name__.endswith("d") and digit in {"1", "2", "3"}:
                return int(digit)
    return None
