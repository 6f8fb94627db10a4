"""The contract of every ``plot`` method: one panel gives its Axes, several give their Figure."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import normscope as ns

SOURCE = Path(ns.__file__).parent


def plot_methods():
    """Every public class's ``plot`` in the source, by the class's name."""
    return {
        kind.name: method
        for path in sorted(SOURCE.rglob("*.py"))
        for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(kind, ast.ClassDef) and not kind.name.startswith("_")
        for method in kind.body
        if isinstance(method, ast.FunctionDef) and method.name == "plot"
    }


@pytest.mark.parametrize("name", plot_methods())
def test_plot_takes_and_gives_axes_or_gives_a_figure_and_says_so(name):
    method = plot_methods()[name]
    arguments = [each.arg for each in method.args.args][1:]
    gives = ast.unparse(method.returns)
    assert (arguments, gives) in [(["ax"], "Axes"), ([], "Figure")]
    assert "Returns:" in inspect.cleandoc(ast.get_docstring(method))


def test_figure_of_every_plot_is_reached_the_same_way():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    problem = net, "squared_error", (torch.randn(16, 4), torch.randn(16, 3))
    one = ns.max_learning_rate(*problem, verify=False).plot()
    several = ns.compare(*problem, norms=["batch"], verify=False, steps=3).plot()
    assert isinstance(one, Axes)
    assert isinstance(several, Figure)
    assert isinstance(one.figure, Figure)
    assert several.figure is several
