"""Curvature as training sees it: Fisher, Gauss-Newton and Hessian, without side effects."""

from normscope.curvature.batch_size import BatchSizeEffect, batch_size_effect
from normscope.curvature.dense import dense
from normscope.curvature.operator import CurvatureOperator, operator
from normscope.curvature.result import TopEigenvalue
from normscope.curvature.spectrum import spectrum
from normscope.curvature.top_eigenvalue import top_eigenvalue
from normscope.curvature.trace import Trace, trace
from normscope.curvature.twice import constant_norm_if_it_serves, differentiate_twice_fast
from normscope.problem.modes import use_fast_derivatives

__all__ = [
    "BatchSizeEffect",
    "CurvatureOperator",
    "TopEigenvalue",
    "Trace",
    "batch_size_effect",
    "dense",
    "operator",
    "spectrum",
    "top_eigenvalue",
    "trace",
]

use_fast_derivatives(differentiate_twice_fast, constant_norm_if_it_serves)
