"""The loss after 500 steps at the learning rate of each tool, against the best of a dense grid.

    python benchmarks/learning_rate_choice.py grid --store DIR      # runs at 16 rates
    python benchmarks/learning_rate_choice.py tools --store DIR     # suggestions, and runs at them
    python benchmarks/learning_rate_choice.py report --store DIR --write FILE

Each network has one optimizer: SGD, SGD with momentum 0.9 or AdamW, torch's defaults otherwise. The
measure, fixed before any run: the mean training loss of the last 50 of 500 steps, over two data
orders. A tool's excess is its measure over that of the grid's best rate, minus one. Runs and
suggestions are kept in DIR (formats: ``learning_rate_choice_runs.py``; ``suggestions.json``), and a
command that was interrupted resumes. ``--orders 0`` takes the measure over the first data order
alone. ``tools --renew`` asks the named tools again. Needs MNIST and CIFAR-10 (NORMSCOPE_DATA),
torch-lr-finder, lightning and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from learning_rate_choice_networks import NETWORKS, Network
from learning_rate_choice_report import COLUMNS, PARTS, Answer, Row, fill
from learning_rate_choice_runs import ORDERS, RunStore, best_of_grid, mean_loss, run_grid

Suggestions = dict[str, dict[str, dict[str, Any]]]
"""By network and tool."""


def run_tools(store: RunStore, networks: list[Network], tools: list[str], renew: bool) -> None:
    """Ask the tools, then train at their rates."""
    from learning_rate_choice_tools import suggest

    for network in networks:
        for tool in tools:
            if renew or tool not in read_suggestions(store).get(network.name, {}):
                found = suggest(network, tool)
                print(network.name, tool, found, flush=True)
                known = read_suggestions(store)  # again: another process may have added to it
                known.setdefault(network.name, {})[tool] = found
                write_suggestions(store, known)
        answers = read_suggestions(store)[network.name]
        for rate in (answers[tool]["rate"] for tool in tools):
            if rate is not None:
                mean_loss(store, network, rate)


def read_suggestions(store: RunStore) -> Suggestions:
    """What the tools said so far."""
    file = store.directory / "suggestions.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def write_suggestions(store: RunStore, suggestions: Suggestions) -> None:
    """Replace the file at once: an interrupted run leaves the old one."""
    unfinished = store.directory / f"suggestions.{os.getpid()}.unfinished"
    unfinished.write_text(json.dumps(suggestions, indent=1) + "\n")
    unfinished.replace(store.directory / "suggestions.json")


def row_of(store: RunStore, network: Network, suggestions: dict[str, dict[str, Any]]) -> Row:
    """The results of a network from its runs."""
    rate, best = best_of_grid(store, network)
    answers = {}
    for tool, said in suggestions.items():
        loss = mean_loss(store, network, said["rate"]) if said["rate"] is not None else float("inf")
        answers[tool] = Answer(said["rate"], loss / best - 1, said["range_tests"])
    return Row(network, rate, best, len(store.orders), answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("grid", "tools", "report"))
    parser.add_argument("--store", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME"
    )
    parser.add_argument(
        "--tools", nargs="+", choices=COLUMNS, default=list(COLUMNS), metavar="NAME"
    )
    parser.add_argument("--orders", nargs="+", type=int, default=list(ORDERS), metavar="SEED")
    parser.add_argument("--renew", action="store_true", help="ask the tools again")
    parser.add_argument("--write", type=Path, metavar="FILE", help="page whose tables to fill")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = RunStore(options.store, options.orders)
    networks = [NETWORKS[name] for name in options.networks]
    if options.part == "grid":
        run_grid(store, networks)
    elif options.part == "tools":
        run_tools(store, networks, options.tools, options.renew)
    else:
        report(store, networks, options.write)


def report(store: RunStore, networks: list[Network], file: Path | None) -> None:
    """Print the tables, and write them into a page."""
    known = read_suggestions(store)
    rows = [row_of(store, network, known.get(network.name, {})) for network in networks]
    for name, part in PARTS.items():
        print(f"{name}\n{part(rows)}\n")
    if file:
        file.write_text(fill(file.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
