"""Training runs of 500 steps at given rates, kept in a directory, and the grid of rates.

Every run is one line of JSON in ``DIR/<network>.jsonl``, written as soon as it is finished:

    network, optimizer, held_out   as in ``learning_rate_choice_networks.py``
    rate, order                    learning rate; seed of the data order (and of the VAE's noise)
    losses                         training loss of every step, before the step; ends early
                                   where it became non-finite (not written)
    finished                       whether all 500 steps were finite
    test_loss                      of 512 samples that training does not see, in eval mode;
                                   null if not finished
    seconds                        of the run, loading excluded

Rates are written as they were used: a run is found by its exact rate. The measure is the mean
training loss of the last 50 steps, over two data orders; infinite if a run did not finish.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from learning_rate_choice_networks import RATES, STEPS, Network
from torch import nn

GRID_SIZE = 16
LAST = 50
"""Steps at the end whose mean training loss is the measure."""

ORDERS = (0, 1)
CLOSE = 1.05
"""Further orders are run where the first was within this factor of the best."""

MOST_EXTENSIONS = 6
Run = dict[str, Any]


class RunStore:
    """Runs kept in a directory, one file for each network.

    Args:
        directory: is made where it is missing.
        orders: seeds of the data orders over which the measure is taken.
    """

    def __init__(self, directory: Path, orders: Sequence[int] = ORDERS) -> None:
        self.directory, self.orders = directory, orders
        directory.mkdir(parents=True, exist_ok=True)
        self._runs: dict[str, dict[tuple[float, int], Run]] = {}

    def runs(self, network: Network) -> dict[tuple[float, int], Run]:
        """The runs of a network by rate and order."""
        if network.name not in self._runs:
            file = self._file(network)
            lines = file.read_text().splitlines() if file.is_file() else []
            found = [json.loads(line) for line in lines]
            self._runs[network.name] = {(run["rate"], run["order"]): run for run in found}
        return self._runs[network.name]

    def run(self, network: Network, rate: float, order: int) -> Run:
        """A run, read or made now."""
        known = self.runs(network)
        if (rate, order) not in known:
            run = known[rate, order] = train(network, rate, order)
            with self._file(network).open("a") as file:
                file.write(json.dumps(run) + "\n")
            shown = f"{loss_at_end(run):.4g}" if run["finished"] else f"{len(run['losses'])} steps"
            print(
                f"{network.name} {rate:.3g} order {order}: {shown}, {run['seconds']:.1f} s",
                flush=True,
            )
        return known[rate, order]

    def _file(self, network: Network) -> Path:
        return self.directory / f"{network.name.replace(' ', '_')}.jsonl"


def train(network: Network, rate: float, order: int) -> Run:
    """Train from the initial weights by a plain loop."""
    batches, model = network.batches(order), network.model()
    optimizer = network.new_optimizer(model, rate)
    losses: list[float] = []
    begin = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(order)
        for batch in batches:
            loss = network.loss_of(model, batch)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finished = len(losses) == STEPS and math.isfinite(losses[-1])
    return {
        "network": network.name,
        "optimizer": network.optimizer,
        "held_out": network.held_out,
        "rate": rate,
        "order": order,
        "losses": [float(f"{loss:.7g}") for loss in losses if math.isfinite(loss)],
        "finished": finished,
        "test_loss": test_loss(network, model) if finished else None,
        "seconds": round(time.perf_counter() - begin, 2),
    }


def test_loss(network: Network, model: nn.Module) -> float | None:
    """The loss of samples that training does not see, in eval mode; None if not finite."""
    model.eval()
    with torch.no_grad():
        losses = [network.loss_of(model, batch).item() for batch in network.test_batches()]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else None


def loss_at_end(run: Run) -> float:
    """Mean training loss of the last 50 steps; infinite if the run did not finish."""
    return sum(run["losses"][-LAST:]) / LAST if run["finished"] else math.inf


def grid(network: Network, extension: int = 0) -> list[float]:
    """The rates of the grid; positive extensions go on above, negative ones below."""
    low, high = RATES[network.optimizer]
    first, end = min(extension, 0), GRID_SIZE + max(extension, 0)
    return [float(f"{low * (high / low) ** (k / (GRID_SIZE - 1)):.3g}") for k in range(first, end)]


def run_grid(store: RunStore, networks: list[Network]) -> None:
    """Run the grid: every second rate, then those near the best in both orders, then the rest.

    Networks for tuning come first.
    """
    ordered = sorted(networks, key=lambda network: network.held_out)
    for network in ordered:
        for rate in grid(network)[::2]:
            store.run(network, rate, store.orders[0])
    for network in ordered:
        refine(store, network)
    for network in ordered:
        best_of_grid(store, network)
    for network in ordered:
        for rate in grid(network):
            store.run(network, rate, store.orders[0])
        best_of_grid(store, network)


def refine(store: RunStore, network: Network) -> None:
    """Run the neighbours of rates that are close to the best, and extend the grid."""
    for _ in range(2):
        rates = grid(network)
        near = {rates.index(rate) for rate in close_rates(store, network) if rate in rates}
        for number, rate in enumerate(rates):
            if near & {number - 1, number, number + 1}:
                store.run(network, rate, store.orders[0])
        extend(store, network)


def grid_runs(store: RunStore, network: Network) -> dict[float, Run]:
    """The runs of the grid and its extensions in the first order by rate, ascending."""
    order = store.orders[0]
    wide = [*grid(network, -MOST_EXTENSIONS), *grid(network, MOST_EXTENSIONS)]
    known = store.runs(network)
    return {rate: known[rate, order] for rate in sorted(set(wide)) if (rate, order) in known}


def extend(store: RunStore, network: Network) -> None:
    """Add rates until the best has two on either side, at most six."""
    for _ in range(MOST_EXTENSIONS):
        runs = grid_runs(store, network)
        rates = list(runs)
        best = rates.index(min(rates, key=lambda rate: loss_at_end(runs[rate])))
        if 2 <= best < len(rates) - 2:
            return
        if best < 2:
            beyond = [rate for rate in grid(network, -MOST_EXTENSIONS) if rate < rates[0]][-1:]
        else:
            beyond = [rate for rate in grid(network, MOST_EXTENSIONS) if rate > rates[-1]][:1]
        for rate in beyond:
            store.run(network, rate, store.orders[0])


def close_rates(store: RunStore, network: Network) -> list[float]:
    """Rates of the grid that may be the best over all orders."""
    losses = {rate: loss_at_end(run) for rate, run in grid_runs(store, network).items()}
    return [rate for rate, loss in losses.items() if loss <= CLOSE * min(losses.values())]


def best_of_grid(store: RunStore, network: Network) -> tuple[float, float]:
    """The rate with the smallest mean loss over the orders, and that loss."""
    losses = {rate: mean_loss(store, network, rate) for rate in close_rates(store, network)}
    rate = min(losses, key=lambda each: losses[each])
    return rate, losses[rate]


def mean_loss(store: RunStore, network: Network, rate: float) -> float:
    """The measure at a rate: runs are made where they are missing."""
    losses = [loss_at_end(store.run(network, rate, order)) for order in store.orders]
    return sum(losses) / len(losses)
