"""Theorems as executable checks: on tensors, on random cases, on a layer of a network.

Each statement is in its own file, in the form its source prints and in the corrected one.
"""

from normscope.theorems.check import check, check_cases, random_case
from normscope.theorems.check_layer import check_layer
from normscope.theorems.statement import THEOREMS, Statement
from normscope.theorems.verdict import TooLarge, Unchecked, Verdict, Verdicts

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
    "random_case",
]
