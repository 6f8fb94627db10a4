"""Theorems as statements that run: on tensors, on random cases, on a layer of a real network.

Each file states one theorem, with the form its source prints beside the one that is true.
"""

from normscope.theorems.check import check, check_cases
from normscope.theorems.layer import check_layer
from normscope.theorems.statement import THEOREMS, Statement
from normscope.theorems.unchecked import TooLarge, Unchecked
from normscope.theorems.verdict import Verdict, Verdicts

__all__ = [
    "THEOREMS",
    "Statement",
    "TooLarge",
    "Unchecked",
    "Verdict",
    "Verdicts",
    "check",
    "check_cases",
    "check_layer",
]
