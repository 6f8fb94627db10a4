"""Read an ``nn.Module`` as a graph of operations that mean-field theory knows."""

from normscope.meanfield.reading.reader import read

__all__ = ["read"]
