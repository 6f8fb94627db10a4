"""The networks of the papers, with any normalization: ``build("vgg", norm="batch", seed=0)``."""

from normscope.models.catalogue import MODELS, architecture, build

__all__ = ["MODELS", "architecture", "build"]
