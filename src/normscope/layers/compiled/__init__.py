"""Kernels in plain C for small batches: built on demand, loaded, and called on tensors.

Without them the layers use PyTorch alone.
"""

from normscope.layers.compiled.build import library, state_of_library
from normscope.layers.compiled.kernels import (
    LARGEST_UNCENTRED_RATIO,
    compiled_gradient,
    compiled_noise,
    compiled_output,
    faster_sums,
    is_channels_last,
)

__all__ = [
    "LARGEST_UNCENTRED_RATIO",
    "compiled_gradient",
    "compiled_noise",
    "compiled_output",
    "faster_sums",
    "is_channels_last",
    "library",
    "state_of_library",
]
