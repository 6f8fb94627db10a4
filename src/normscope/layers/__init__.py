"""Normalization layers, drop-in for PyTorch's, and tools that convert, fold and measure them."""

from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.kinds import (
    NORMS,
    NoNorm,
    PositionNorm,
    is_norm,
    kind_of,
    norm_kind,
    norm_layers,
    normalization,
)
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noisy import Noise, NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from normscope.layers.population import population_statistics
from normscope.layers.sample_norms import DynamicTanh, SampleRMSNorm, ShiftedRMSNorm
from normscope.layers.surgery.convert import Change, convert, plan_conversion
from normscope.layers.surgery.fold import fold
from normscope.problem.modes import is_batch_norm

__all__ = [
    "NORMS",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Change",
    "DynamicTanh",
    "LpNorm1d",
    "LpNorm2d",
    "LpNorm3d",
    "NoNorm",
    "Noise",
    "NoisyBatchNorm1d",
    "NoisyBatchNorm2d",
    "NoisyBatchNorm3d",
    "PositionNorm",
    "SampleRMSNorm",
    "ShiftedRMSNorm",
    "convert",
    "fold",
    "is_batch_norm",
    "is_norm",
    "kind_of",
    "norm_kind",
    "norm_layers",
    "normalization",
    "plan_conversion",
    "population_statistics",
]
