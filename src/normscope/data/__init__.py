"""Data sets as tensors: ``digits`` (embedded), ``mnist``, ``cifar10``, ``gaussian``."""

from normscope.data.content import Check
from normscope.data.dataset import DATASETS, Dataset, Split, load
from normscope.data.embedded import gaussian_inputs
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
