"""Measurements on a running training, none of which changes it."""

from normscope.probes.activation_moments import ActivationMoments
from normscope.probes.along_gradient import (
    EffectiveSmoothness,
    GradientPredictiveness,
    LossVariation,
)
from normscope.probes.context import StepContext
from normscope.probes.covariate_shift import CovariateShift
from normscope.probes.curvature import Curvature
from normscope.probes.gradients import GradientNorms
from normscope.probes.probe import PRESETS, PROBES, Cost, Probe
from normscope.probes.scope import Scope
from normscope.probes.stability import Stability
from normscope.probes.statistics_gap import StatisticsGap

__all__ = [
    "PRESETS",
    "PROBES",
    "ActivationMoments",
    "Cost",
    "CovariateShift",
    "Curvature",
    "EffectiveSmoothness",
    "GradientNorms",
    "GradientPredictiveness",
    "LossVariation",
    "Probe",
    "Scope",
    "Stability",
    "StatisticsGap",
    "StepContext",
]
