"""Normalization layers, drop-in for PyTorch's, and what can be done with those of a model."""

from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.convert import Change, convert, plan_conversion
from normscope.layers.detect import is_batch_norm, is_norm, kind_of, norm_layers
from normscope.layers.fold import fold
from normscope.layers.kinds import NORMS, NoNorm, normalization
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noise import Noise
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from normscope.layers.population import population_statistics

__all__ = [
    "NORMS",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Change",
    "LpNorm1d",
    "LpNorm2d",
    "LpNorm3d",
    "NoNorm",
    "Noise",
    "NoisyBatchNorm1d",
    "NoisyBatchNorm2d",
    "NoisyBatchNorm3d",
    "convert",
    "fold",
    "is_batch_norm",
    "is_norm",
    "kind_of",
    "norm_layers",
    "normalization",
    "plan_conversion",
    "population_statistics",
]
