"""Length and direction of the weights, optimized apart from each other."""

from normscope.decoupled.alternation import Trained, UnitPath, train_units
from normscope.decoupled.classifier import GDNPClassifier
from normscope.decoupled.gdnp import Iterate, gdnp
from normscope.decoupled.gdnp_options import Options
from normscope.decoupled.halfspace import GaussianObjective, Objective, SampleObjective
from normscope.decoupled.hidden_units import HiddenUnits
from normscope.decoupled.inequalities import (
    Inequalities,
    direction_constant,
    inequalities,
)
from normscope.decoupled.least_squares import ordinary_least_squares
from normscope.decoupled.least_squares_path import LeastSquaresPath
from normscope.decoupled.margin_losses import MarginLoss, margin_loss
from normscope.decoupled.mlp_classifier import GDNPMLPClassifier
from normscope.decoupled.rayleigh import RayleighPath, rayleigh_ascent
from normscope.decoupled.second_moment import SecondMoment
from normscope.decoupled.signed_design import SignedDesign

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
