"""The learning rate that each tool suggests for a network, and the processor time that it takes.

Every tool has the same network, optimizer, loss and batches, and its own defaults:

- torch-lr-finder: range test of 100 steps from 1e-7 to 10; the steepest point of its plot.
- Lightning: ``Tuner(trainer).lr_find(module).suggestion()``, 100 steps from 1e-8 to 1.
- fastai valley: written here from its description (`valley`), 100 steps from 1e-7 to 10.
- 3e-4: a rate that many take without asking.
- normscope: ``max_learning_rate(...).recommended`` at each effort;
  "half limit" is that of the default effort with ``objective="half_limit"``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import numpy as np
import torch
from learning_rate_choice_networks import Network
from lightning.pytorch.tuner import Tuner
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_lr_finder import LRFinder, TrainDataLoaderIter

from normscope.learning_rate import max_learning_rate

RANGE_STEPS = 100
START, END = 1e-7, 10.0  # of torch-lr-finder's and fastai's range tests
Suggestion = tuple[float | None, dict[str, Any]]
"""The rate, None if the tool has none; and what else is to be kept."""


class BatchLoss(nn.Module):
    """A network as a module from a batch to its loss, for tools with their own loops."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network, self.model = network, network.model()

    def forward(self, batch: Any) -> Tensor:
        return self.network.loss_of(self.model, batch)


def loader(network: Network) -> DataLoader:
    """The training batches in the first order."""
    return DataLoader(network.batches(0), batch_size=None)


def torch_lr_finder(network: Network) -> Suggestion:
    class WholeBatches(TrainDataLoaderIter):
        def inputs_labels_from_batch(self, batch_data: Any) -> tuple[Any, None]:
            return batch_data, None

    model = BatchLoss(network)
    optimizer = network.new_optimizer(model, START)
    finder = LRFinder(model, optimizer, lambda loss, _: loss, device="cpu")
    with silent():
        finder.range_test(WholeBatches(loader(network)), num_iter=RANGE_STEPS)
        try:
            _, rate = finder.plot(ax=Figure().subplots())
        except RuntimeError:  # too few steps before it broke off
            rate = None
    return rate, {}


def lightning_lr_find(network: Network) -> Suggestion:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.lr = BatchLoss(network), 1e-3

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.inner(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return network.new_optimizer(self, self.lr)

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    with silent(), tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, default_root_dir=directory, **dict.fromkeys(off, False)
        )
        found = Tuner(trainer).lr_find(Module(), train_dataloaders=loader(network))
        return (None if found is None else found.suggestion()), {}


def fastai_valley(network: Network) -> Suggestion:
    rates, losses = range_test(network)
    shown = slice(RANGE_STEPS // 10, -5)
    index = valley(losses[shown])
    return (None if index is None else rates[shown][index]), {}


def range_test(network: Network) -> tuple[list[float], list[float]]:
    """Rates and smoothed losses of a mock training; ends at four times the least loss."""
    model = network.model()
    optimizer = network.new_optimizer(model, START)
    rates, smoothed, mean = [], [], 0.0
    for step, batch in enumerate(itertools.islice(network.batches(0), RANGE_STEPS)):
        rate = START * (END / START) ** (step / RANGE_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = network.loss_of(model, batch)
        mean = 0.98 * mean + 0.02 * loss.item()
        rates.append(rate)
        smoothed.append(mean / (1 - 0.98 ** (step + 1)))
        if not smoothed[-1] <= 4 * min(smoothed):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rates, smoothed


def valley(losses: list[float]) -> int | None:
    """Index of the middle of the longest valley, None without one.

    The valley is the longest subsequence of decreasing losses; its extent is as many points, up to
    its last.
    """
    lengths = np.ones(len(losses), dtype=int)
    values = np.asarray(losses)
    for end in range(1, len(losses)):
        higher = values[:end] > values[end]
        lengths[end] = 1 + max(lengths[:end][higher], default=0)
    if len(losses) < 2 or lengths.max() < 2:
        return None
    last, length = int(lengths.argmax()), int(lengths.max())
    return last - length // 2


def constant(network: Network) -> Suggestion:
    return 3e-4, {}


def normscope_at(effort: str, objective: str | None = None) -> Callable[[Network], Suggestion]:
    """What asks normscope with options."""

    def advise(network: Network) -> Suggestion:
        size = None if network.batched else network.batch_size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            advice = max_learning_rate(
                network.model(),
                network.loss,
                network.samples(),
                optimizer=lambda parameters: network.optimizer_of(parameters, 1e-3),
                batch_size=size,
                effort=effort,
                objective=objective,
            )
        low, high = advice.interval
        return advice.recommended, {"limit": advice.limit, "low": low, "high": high}

    return advise


TOOLS: dict[str, Callable[[Network], Suggestion]] = {
    "torch-lr-finder": torch_lr_finder,
    "Lightning": lightning_lr_find,
    "fastai valley": fastai_valley,
    "3e-4": constant,
    "half limit": normscope_at("default", "half_limit"),
    "normscope quick": normscope_at("quick"),
    "normscope": normscope_at("default"),
    "normscope thorough": normscope_at("thorough"),
}


@functools.cache
def load_modules() -> None:
    """Let normscope load the modules that its first call loads, as the finders' imports do."""
    max_learning_rate(nn.Linear(2, 2), "cross_entropy", (torch.randn(8, 2), torch.arange(8) % 2))


def suggest(network: Network, tool: str) -> dict[str, Any]:
    """A tool's rate, its processor time, and that time in range tests.

    A range test is 100 plain training steps, timed before and after the tool in the same process;
    processor time, since other work on the machine lengthens the time on the clock.
    """
    load_modules()
    before = seconds_of_range_test(network)
    torch.manual_seed(0)
    begin = time.process_time()
    rate, more = TOOLS[tool](network)
    seconds = time.process_time() - begin
    after = seconds_of_range_test(network)
    usable = rate is not None and math.isfinite(rate) and rate > 0
    return {
        "rate": float(f"{rate:.3g}") if usable else None,
        "seconds": seconds,
        "range_tests": 2 * seconds / (before + after),
        **more,
    }


def seconds_of_range_test(network: Network, rate: float = 1e-6) -> float:
    """Processor time of 100 plain training steps; by default at a rate that moves little."""
    batches, model = network.batches(0)[:RANGE_STEPS], network.model()
    optimizer = network.new_optimizer(model, rate)
    begin = time.process_time()
    for batch in batches:
        loss = network.loss_of(model, batch)
        loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.process_time() - begin


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """No output, no warnings."""
    output = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), output[0], output[1]:
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
