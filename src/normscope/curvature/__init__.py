"""Curvature of the loss in train mode: Fisher, Gauss-Newton and Hessian, without side effects."""

from normscope.curvature.autograd.replace import fast_constant_norm, use_fast_layers
from normscope.curvature.batch_size import BatchSizeEffect, batch_size_effect
from normscope.curvature.kinds import KINDS, BatchPoint, mean_over_samples
from normscope.curvature.operator import CurvatureOperator, dense, operator
from normscope.curvature.output_hessian import FactoredHessian, OutputHessian
from normscope.curvature.products import BatchCurvature, GaussNewtonProduct
from normscope.curvature.spectrum import spectrum
from normscope.curvature.top_eigenvalue import TopEigenvalue, top_eigenvalue
from normscope.curvature.trace import Trace, trace
from normscope.problem.modes import use_fast_derivatives

__all__ = [
    "KINDS",
    "BatchCurvature",
    "BatchPoint",
    "BatchSizeEffect",
    "CurvatureOperator",
    "FactoredHessian",
    "GaussNewtonProduct",
    "OutputHessian",
    "TopEigenvalue",
    "Trace",
    "batch_size_effect",
    "dense",
    "mean_over_samples",
    "operator",
    "spectrum",
    "top_eigenvalue",
    "trace",
]

use_fast_derivatives(use_fast_layers, fast_constant_norm)
