"""Recipes that reproduce the papers, and the demo: one result per file."""

from normscope.experiments.recipe import EXPERIMENTS, SCALES, Recipe, experiment, run
from normscope.experiments.result import Result

__all__ = ["EXPERIMENTS", "SCALES", "Recipe", "Result", "experiment", "run"]
