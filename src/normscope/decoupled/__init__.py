"""Optimization of the length and direction of weights separately."""

from normscope.decoupled.classifier import GDNPClassifier
from normscope.decoupled.design import SecondMoment, SignedDesign
from normscope.decoupled.gdnp import Iterate, Options, gdnp
from normscope.decoupled.halfspace import (
    GaussianObjective,
    MarginLoss,
    Objective,
    SampleObjective,
    margin_loss,
)
from normscope.decoupled.hidden_units import HiddenUnits, Trained, UnitPath, train_units
from normscope.decoupled.inequalities import Inequalities, direction_constant, inequalities
from normscope.decoupled.least_squares import ordinary_least_squares
from normscope.decoupled.mlp_classifier import GDNPMLPClassifier
from normscope.decoupled.paths import LeastSquaresPath, RayleighPath, rayleigh_ascent

__all__ = [
    "GDNPClassifier",
    "GDNPMLPClassifier",
    "GaussianObjective",
    "HiddenUnits",
    "Inequalities",
    "Iterate",
    "LeastSquaresPath",
    "MarginLoss",
    "Objective",
    "Options",
    "RayleighPath",
    "SampleObjective",
    "SecondMoment",
    "SignedDesign",
    "Trained",
    "UnitPath",
    "direction_constant",
    "gdnp",
    "inequalities",
    "margin_loss",
    "ordinary_least_squares",
    "rayleigh_ascent",
    "train_units",
]
