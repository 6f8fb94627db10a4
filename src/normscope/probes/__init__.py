"""Measurements on a training under way, none of which changes it."""

from normscope.probes.activation_moments import ActivationMoments
from normscope.probes.covariate_shift import CovariateShift
from normscope.probes.curvature import Curvature
from normscope.probes.effective_smoothness import EffectiveSmoothness
from normscope.probes.gradient_norms import GradientNorms
from normscope.probes.gradient_predictiveness import GradientPredictiveness
from normscope.probes.loss_variation import LossVariation
from normscope.probes.moment import Moment
from normscope.probes.presets import PRESETS
from normscope.probes.probe import PROBES, Cost, Probe
from normscope.probes.scope import Scope
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
    "Moment",
    "Probe",
    "Scope",
    "StatisticsGap",
]
