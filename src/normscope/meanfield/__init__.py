"""Mean-field theory of networks at initialization: order parameters and the Fisher matrix."""

from normscope.meanfield.activations import Activation, Rectifier, Smooth
from normscope.meanfield.graph import Graph, Node
from normscope.meanfield.layer_row import LayerRow
from normscope.meanfield.predict import CLOSURES, predict
from normscope.meanfield.prediction import Prediction
from normscope.meanfield.specification import (
    convolutional_specification,
    fully_connected_specification,
)

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
