"""A process that runs public calls with little memory left; prints one line of JSON for each call.

Arguments: a seed and the number of calls. It is a program of its own, since a failed allocation may
end a process.
"""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.adversarial.interrupts import differences, global_state, model_state
from torch import nn

import normscope as ns
from normscope.errors import NormscopeError

SIZE = 700
torch.manual_seed(1)
X, Y = torch.randn(256, SIZE), torch.randint(10, (256,))
VECTOR = torch.randn(SIZE * SIZE + 3 * SIZE + 10 * SIZE + 10)
MEGABYTE = 2**20


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), nn.ReLU(), nn.Linear(SIZE, 10)
    )


def scope(model: nn.Module) -> float:
    with ns.Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.1)) as observer:
        observer.step(X, Y)
    return float(observer.results["loss"][0])


def population(model: nn.Module) -> float:
    found = ns.layers.population_statistics(copy.deepcopy(model), (X, Y))
    return float(found["1"].spread.sum())


CALLS: dict[str, Callable[[Any], float]] = {
    "top_eigenvalue": lambda m: ns.curvature.top_eigenvalue(m, "cross_entropy", (X, Y)).value,
    "hessian": lambda m: float(
        (ns.curvature.operator(m, "cross_entropy", (X, Y), "hessian") @ VECTOR).norm()
    ),
    "trace": lambda m: ns.curvature.trace(m, "cross_entropy", (X, Y)).value,
    "max_learning_rate": lambda m: (
        ns.max_learning_rate(m, "cross_entropy", (X, Y), verify=False).limit
    ),
    "fold": lambda m: float(ns.layers.fold(m)(X).sum()),
    "convert": lambda m: float(ns.layers.convert(m, "layer")(X).sum()),
    "population_statistics": population,
    "evaluate": lambda m: ns.training.evaluate(m, "cross_entropy", (X, Y)).loss,
    "predict": lambda m: float(ns.meanfield.predict(m, (SIZE,)).lower_bound),
    "scope": scope,
}


def address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def run(name: str, model: nn.Module, megabytes: float, expected: float) -> str:
    """Run a call with so much memory left; return what became of it."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + int(megabytes * MEGABYTE), hard))
    try:
        found = CALLS[name](model)
    except NormscopeError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except MemoryError:
        return "out of memory"
    except RuntimeError as error:
        return "out of memory" if "memory" in str(error) else f"RuntimeError: {error}"
    except BaseException as error:  # which none of them may raise
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
    return "finished" if math.isclose(found, expected, rel_tol=1e-3) else f"{found}, {expected}"


def main(seed: int, count: int) -> None:
    draw = random.Random(seed)
    expected = {name: call(network()) for name, call in CALLS.items()}  # imports everything
    model = network()
    for _ in range(count):
        name, megabytes = draw.choice(list(CALLS)), 10 ** draw.uniform(-1, 2)
        before, state = global_state(), model_state(model)
        outcome = run(name, model, megabytes, expected[name])
        wrong = differences(before, global_state()) + differences(state, model_state(model))
        line = {"call": name, "megabytes": megabytes, "outcome": outcome, "changed": wrong}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
