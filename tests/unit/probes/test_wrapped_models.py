"""Models inside torch.compile and DistributedDataParallel, in one process and in two."""

import time

import numpy as np
import pytest
import torch
from tests.references import scope_processes
from torch import multiprocessing, nn

from normscope.probes import Scope

PROBES = ["gradient_predictiveness", "covariate_shift", "activation_moments", "statistics_gap"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.Tanh())
        self.head = nn.Linear(9, 10)

    def forward(self, x):
        return self.head(self.features(x) + 1.0)


def batch(seed=0, samples=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def measured(model, parameters):
    scope = Scope(model, "cross_entropy", torch.optim.SGD(parameters, 0.1), PROBES)
    scope.step(*batch())
    return scope.results


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("way", ["whole", "in place", "part"])
def test_compiled_model_is_looked_at_uncompiled(way, fresh_compiler):
    model = Net()
    expected = measured(model, model.parameters())
    compiled = []

    def backend(graph, _):
        compiled.append(1)
        return graph

    if way == "whole":
        wrapped = torch.compile(model, backend=backend)
    elif way == "in place":
        wrapped = model
        wrapped.compile(backend=backend)
    else:
        wrapped = model
        wrapped.features = torch.compile(model.features, backend=backend)
    wrapped(batch()[0])
    assert compiled
    count = len(compiled)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith(("mean", "tracked")):
                buffer.zero_()
            else:
                buffer.fill_(1.0)
    results = measured(wrapped, wrapped.parameters())
    assert len(compiled) == count
    for name in expected.data_vars:
        np.testing.assert_allclose(
            results[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=str(name)
        )


@pytest.mark.timeout(150)
def test_only_the_first_process_measures_and_none_waits(tmp_path):
    context = multiprocessing.spawn(
        scope_processes.run, (tmp_path / "meeting", tmp_path), nprocs=2, join=False
    )
    end = time.monotonic() + 120
    try:
        while not context.join(5):
            assert time.monotonic() < end, "a process waits for another"
    finally:
        for process in context.processes:
            process.kill()
    for rank in range(2):
        plain, seen = torch.load(tmp_path / f"{rank}.pt")
        assert plain
        assert all(torch.equal(plain[name], seen[name]) for name in plain)
