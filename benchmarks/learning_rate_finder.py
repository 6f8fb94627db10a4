"""The range test of torch-lr-finder as its users run it: on a DataLoader, with its defaults."""

from __future__ import annotations

import contextlib
import copy
import io
import time
from importlib.util import find_spec

import torch
from learning_rate_cases import BATCH_SIZE, Case
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.problem.loss import LOSSES

STEPS = 100
START = 1e-7
ENDLESS = 1e30  # a multiple of the best loss that no run reaches


def is_present() -> bool:
    """Whether the package is there: it comes with ``pip install -e .[bench]``."""
    return find_spec("torch_lr_finder") is not None


def range_test(case: Case, model: nn.Module) -> tuple[float | None, float | None]:
    """The suggested rate and the rate at which the test broke off; None where there is none."""
    finder = _tested(case, model)
    rates = finder.history["lr"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _, suggestion = finder.plot(ax=Figure().subplots())
    except RuntimeError:  # too few steps before it broke off
        suggestion = None
    return suggestion, rates[-1] if len(rates) < STEPS else None


def seconds_of_range_test(case: Case, model: nn.Module) -> float:
    """The time of a test that takes all its hundred steps, at rates that move nothing."""
    begin = time.perf_counter()
    _tested(case, model, end_lr=2 * START, diverge_th=ENDLESS)
    return time.perf_counter() - begin


def _tested(case: Case, model: nn.Module, **options: float):
    from torch_lr_finder import LRFinder

    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=START, momentum=case.momentum)
    loader = DataLoader(TensorDataset(*case.samples()), batch_size=BATCH_SIZE, shuffle=True)
    finder = LRFinder(model, optimizer, LOSSES[case.loss])
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        finder.range_test(loader, num_iter=STEPS, **options)
    return finder
