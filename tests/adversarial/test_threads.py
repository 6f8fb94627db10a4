"""Other threads during public calls: an unrelated model serves the same bits, scopes do not mix."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.adversarial.calls import CALLS
from torch import Tensor, nn
from torch.nn import functional

import normscope as ns


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Served(nn.Module):
    """Convolution, batch norm, attention: what a call might have patched or switched."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.convolution(x)).flatten(2).transpose(1, 2)
        heads = tokens.unflatten(-1, (2, 2)).transpose(1, 2)
        direct = functional.scaled_dot_product_attention(heads, heads, heads)
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head((mixed + direct.transpose(1, 2).flatten(2)).mean(1))


class Server(threading.Thread):
    """Serves a model, outputs and gradients, until it is stopped; keeps what went wrong."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        torch.manual_seed(0)
        self.model = Served().eval()
        self.inputs = torch.randn(2, 2, 8, 8)
        self.served = 0
        self.wrong: list[str] = []
        self.stopped = threading.Event()
        self.expected = self.serve()

    def serve(self) -> list[Tensor]:
        output = self.model(self.inputs)
        weights = list(self.model.parameters())
        return [output.detach(), *torch.autograd.grad(output.sum(), weights, allow_unused=True)]

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                found = self.serve()
                same = all(
                    (a is b) if a is None else torch.equal(a, b)
                    for a, b in zip(found, self.expected, strict=True)
                )
                if not same:
                    self.wrong.append("other bits")
                if not torch.is_grad_enabled():
                    self.wrong.append("grad mode")
            except Exception as error:  # whatever a call broke
                self.wrong.append(repr(error))
            self.served += 1
            time.sleep(0)


@pytest.mark.parametrize("name", CALLS)
def test_a_thread_that_serves_another_model_is_not_disturbed(
    name: str, count: Callable[..., None]
) -> None:
    server = Server()
    case = CALLS[name]()
    server.start()
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end or server.served < 5:
        case.run()
    server.stopped.set()
    server.join()
    count("requests of another thread", name, server.served)
    assert not server.wrong, server.wrong[:3]


def _training(seed: int, observed: bool) -> dict[str, Any]:
    """Train a small network, with a scope or without; return weights and measurements."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scope = ns.Scope(model, "cross_entropy", optimizer, every=2) if observed else None
    for _ in range(6):
        x = torch.randn(12, 5, generator=generator)
        y = torch.randint(2, (12,), generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        if scope is not None:
            scope.step(x, y)
        optimizer.step()
    return {
        "weights": [parameter.detach().clone() for parameter in model.parameters()],
        "results": None if scope is None else scope.results,
    }


def test_two_scopes_in_two_threads_measure_as_one_after_the_other() -> None:
    expected = {seed: _training(seed, observed=True) for seed in (1, 2)}
    plain = {seed: _training(seed, observed=False) for seed in (1, 2)}
    found: dict[int, dict[str, Any]] = {}

    def train(seed: int) -> None:
        found[seed] = _training(seed, observed=True)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (1, 2):
        for weights in (expected[seed]["weights"], plain[seed]["weights"]):
            assert all(map(torch.equal, found[seed]["weights"], weights))
        assert found[seed]["results"].equals(expected[seed]["results"])


def test_curvature_in_several_threads_is_that_of_one() -> None:
    def problem(seed: int) -> tuple[nn.Module, str, tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))
        for parameter in model.parameters():
            nn.init.normal_(parameter, generator=generator)
        data = torch.randn(8, 5, generator=generator), torch.tensor([0, 1] * 4)
        return model, "cross_entropy", data

    # built before the threads: nn.Linear draws from the generator that dropout uses
    problems = [problem(seed) for seed in range(4)]

    def eigenvalue(seed: int) -> float:
        return ns.curvature.top_eigenvalue(*problems[seed], kind="hessian").value

    expected = [eigenvalue(seed) for seed in range(4)]
    found = [0.0] * 4

    def measure(seed: int) -> None:
        found[seed] = eigenvalue(seed)

    threads = [threading.Thread(target=measure, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
