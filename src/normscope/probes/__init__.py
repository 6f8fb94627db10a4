"""Measurements on a running training, none of which changes it."""

from normscope.probes.activation_moments import ActivationMoments
from normscope.probes.context import StepContext
from normscope.probes.cost import Cost
from normscope.probes.covariate_shift import CovariateShift
from normscope.probes.curvature import Curvature
from normscope.probes.effective_smoothness import EffectiveSmoothness
from normscope.probes.gradient_norms import GradientNorms
from normscope.probes.gradient_predictiveness import GradientPredictiveness
from normscope.probes.loss_variation import LossVariation
from normscope.probes.probe import PRESETS, PROBES, Probe
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
