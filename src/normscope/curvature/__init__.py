"""Curvature as training sees it: Fisher, Gauss-Newton and Hessian, without side effects."""

from normscope.curvature.batch_size import BatchSizeEffect, batch_size_effect
from normscope.curvature.dense import dense
from normscope.curvature.operator import CurvatureOperator, operator
from normscope.curvature.problem import Problem, WholeLoss, whole_loss
from normscope.curvature.result import TopEigenvalue
from normscope.curvature.spectrum import spectrum
from normscope.curvature.top_eigenvalue import top_eigenvalue
from normscope.curvature.trace import Trace, trace

__all__ = [
    "BatchSizeEffect",
    "CurvatureOperator",
    "Problem",
    "TopEigenvalue",
    "Trace",
    "WholeLoss",
    "batch_size_effect",
    "dense",
    "operator",
    "spectrum",
    "top_eigenvalue",
    "trace",
    "whole_loss",
]
