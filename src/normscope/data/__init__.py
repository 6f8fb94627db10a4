"""Data sets as tensors: ``digits`` (embedded), ``mnist``, ``cifar10``, ``gaussian``."""

from normscope.data.catalogue import DATASETS, load
from normscope.data.content import Check
from normscope.data.dataset import Dataset, Split
from normscope.data.gaussian import gaussian_inputs
from normscope.data.inventory import Status, download, inventory, parts, path, verify

__all__ = [
    "DATASETS",
    "Check",
    "Dataset",
    "Split",
    "Status",
    "download",
    "gaussian_inputs",
    "inventory",
    "load",
    "parts",
    "path",
    "verify",
]
