"""Loss surfaces around the weights, with the batch statistics of training, without side effects."""

from normscope.landscape.directions import DIRECTIONS, SCALINGS
from normscope.landscape.points import MODES
from normscope.landscape.result import Surface
from normscope.landscape.surface import surface

__all__ = ["DIRECTIONS", "MODES", "SCALINGS", "Surface", "surface"]
