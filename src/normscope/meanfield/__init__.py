"""Mean-field theory of networks at initialization: order parameters and the Fisher matrix."""

from normscope.meanfield.activations import Activation, Rectifier, Smooth
from normscope.meanfield.graph import (
    Graph,
    Node,
    convolutional_specification,
    fully_connected_specification,
)
from normscope.meanfield.predict import CLOSURES, predict
from normscope.meanfield.result import LayerRow, Prediction

__all__ = [
    "CLOSURES",
    "Activation",
    "Graph",
    "LayerRow",
    "Node",
    "Prediction",
    "Rectifier",
    "Smooth",
    "convolutional_specification",
    "fully_connected_specification",
    "predict",
]
