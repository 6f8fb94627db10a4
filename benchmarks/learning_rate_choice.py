"""The loss after 500 steps at the learning rate of each tool, against the best of a dense grid.

python benchmarks/learning_rate_choice.py --store DIR grid

"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from learning_rate_choice_networks import NETWORKS
from learning_rate_choice_runs import RunStore, chosen_networks, run_grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("grid",))
    parser.add_argument("--store", type=Path, required=True, metavar="DIR")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store, networks = RunStore(options.store), chosen_networks(options.networks)
    run_grid(store, networks)


if __name__ == "__main__":
    main()
