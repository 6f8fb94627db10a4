"""Time and memory of a loss surface, against the limit and other tools.

    python benchmarks/landscape.py [--points 9] [--rounds 6] [--json FILE]

The limit is one forward pass for each point and batch, without gradients, in train mode. A surface
of `normscope.landscape.surface` along two given directions is compared with it, and with
loss-landscapes and Landscaper where they are installed (in any folder on PYTHONPATH). Its time
holds everything but the Hessian's quadratic form: checks, two evaluations of the centre, checksums
of weights and data, the store in memory, results. These fixed costs weigh more on a grid of 9 x 9
than on one of 51 x 51. The row "further points" leaves them out: it is the difference to a surface
of 3 x 3 points.

Every tool runs in train mode on a copy of the model. "untouched" is whether all parameters and
buffers have the same bits afterwards. The tools take turns in one process with one thread, and the
shortest run of each counts, in time of the processor: other work on the machine is not counted.
Memory is the peak of what torch allocates above the start.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import SmallViT
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import normscope as ns

sys.path.append(str(Path(__file__).parents[1]))  # where the tests keep their references
from tests.references.allocation import peak_allocation

GOAL = 1.1  # times the limit
CASES: dict[str, tuple[Callable[[], nn.Module], int]] = {  # with the samples of a batch
    "vgg, quarter width": (lambda: ns.models.build("vgg", width=0.25), 64),
    "ViT": (SmallViT, 32),
}
Batch = tuple[Tensor, Tensor]


def forward_passes(model: nn.Module, batch: Batch, points: int) -> None:
    """Make as many forward passes as a surface has points."""
    with torch.no_grad():
        for _ in range(points**2):
            cross_entropy(model(batch[0]), batch[1]).item()


def normscope(model: nn.Module, batch: Batch, points: int) -> None:
    """Compute a surface by normscope."""
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    directions = [weights / 10, weights.flip(0) / 10]
    ns.landscape.surface(model, cross_entropy, batch, directions, points=points, hessian=False)


def loss_landscapes(model: nn.Module, batch: Batch, points: int) -> None:
    """Compute a surface by loss-landscapes; its filter normalization fails on zero biases."""
    library: Any = importlib.import_module("loss_landscapes")
    metrics: Any = importlib.import_module("loss_landscapes.metrics")
    metric = metrics.Loss(cross_entropy, *batch)
    library.random_plane(model, metric, 1, points, normalization="model", deepcopy_model=True)


def landscaper(model: nn.Module, batch: Batch, points: int) -> None:
    """Compute a surface by Landscaper."""
    library: Any = importlib.import_module("landscaper")
    directions = [[torch.randn_like(each) for each in model.parameters()] for _ in range(2)]

    def loss(moved: nn.Module, data: Batch) -> float:
        return cross_entropy(moved(data[0]), data[1]).item()

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        library.LossLandscape.compute(
            model, batch, directions, loss, steps=points, distance=0.1, dim=2, device="cpu"
        )


TOOLS = {
    "forward passes": forward_passes,
    "normscope": normscope,
    "loss-landscapes": loss_landscapes,
    "landscaper": landscaper,
}


def is_installed(name: str) -> bool:
    """Return whether a tool can be imported."""
    try:
        importlib.import_module(name.replace("-", "_"))
    except ImportError:
        return name == "forward passes"
    return True


def is_untouched(tool: Callable[..., None], model: nn.Module, batch: Batch) -> bool:
    """Return whether a model has the same tensors after a small surface."""
    before = copy.deepcopy(model.state_dict())
    tool(model, batch, 3)
    return all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def shortest(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the least processor time of each call, in seconds, over rounds in changing order."""
    found = dict.fromkeys(calls, float("inf"))
    names, turns = list(calls), random.Random(0)
    for _ in range(rounds):
        turns.shuffle(names)
        for name in names:
            begun = time.process_time()
            calls[name]()
            found[name] = min(found[name], time.process_time() - begun)
    return found


def measure(name: str, points: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row for each tool."""
    torch.manual_seed(0)
    build, batch_size = CASES[name]
    batch = torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))
    model = build().train()
    tools = {tool: call for tool, call in TOOLS.items() if is_installed(tool)}
    models = {tool: copy.deepcopy(model) for tool in tools}
    calls = {tool: lambda t=tool: tools[t](models[t], batch, points) for tool in tools}
    calls["small"] = lambda: normscope(models["normscope"], batch, 3)
    times = shortest(calls, rounds)
    limit = times["forward passes"]
    further = (times["normscope"] - times["small"]) / (points**2 - 9)
    row = {"ms per point": 1e3 * further, "over the limit": further * points**2 / limit}
    return [
        {"net": name, "tool": "normscope, further points", **row, "peak MB": "", "untouched": ""},
        *_rows(name, tools, times, models, batch, points),
    ]


def _rows(
    name: str,
    tools: dict[str, Callable[..., None]],
    times: dict[str, float],
    models: dict[str, nn.Module],
    batch: Batch,
    points: int,
) -> list[dict[str, Any]]:
    return [
        {
            "net": name,
            "tool": tool,
            "ms per point": 1e3 * times[tool] / points**2,
            "over the limit": times[tool] / times["forward passes"],
            "peak MB": peak_allocation(lambda t=tool: tools[t](models[t], batch, 3)) / 1e6,
            "untouched": is_untouched(call, copy.deepcopy(models[tool]), batch),
        }
        for tool, call in tools.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in CASES:
        rows += measure(name, options.points, options.rounds)
        table = Table(title=f"{name}, {options.points} x {options.points}, {platform.machine()}")
        for column in rows[-1]:
            table.add_column(column)
        for row in rows:
            if row["net"] == name:
                shown = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values())
                table.add_row(*shown)
        Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({"goal": GOAL, "rows": rows}, indent=2), "utf-8")
    own = "normscope, further points"
    ratios = [row["over the limit"] for row in rows if row["tool"] == own]
    print(f"goal: at most {GOAL} times the limit; each further point took {max(ratios):.3f}")


if __name__ == "__main__":
    main()
