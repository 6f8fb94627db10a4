"""Wrapped, deep and wide models: every call works, or refuses in one line, in a bounded time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adversarial.interrupts import differences, global_state, model_state
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import normscope as ns
from normscope.errors import ArgumentTypeError, NormscopeError

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def scope(model: nn.Module) -> float:
    with ns.Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.1)) as observer:
        observer.step(X, Y)
    return float(observer.results["loss"][0])


def norm_layer(model: nn.Module) -> str:
    return next(n for n, each in model.named_modules() if isinstance(each, nn.BatchNorm1d))


MEASUREMENTS: dict[str, Callable[[Any], Any]] = {
    "top_eigenvalue": lambda m: ns.curvature.top_eigenvalue(m, "cross_entropy", (X, Y)).value,
    "hessian": lambda m: float(ns.curvature.dense(m, "cross_entropy", (X, Y), "hessian").sum()),
    "trace": lambda m: ns.curvature.trace(m, "cross_entropy", (X, Y)).value,
    "max_learning_rate": lambda m: ns.max_learning_rate(m, "cross_entropy", (X, Y)).limit,
    "scope": scope,
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "fold": lambda m: float(ns.layers.fold(m)(X).sum()),
    "convert": lambda m: float(ns.layers.convert(m, "layer")(X).sum()),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda m: ns.training.evaluate(m, "cross_entropy", (X, Y)).loss,
    "check_layer": lambda m: float(
        len(ns.theorems.check_layer(m, "cross_entropy", (X, Y), layer=norm_layer(m)))
    ),
}


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """One process that is a group."""
    address = f"file://{tmp_path / 'group'}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WORKING: dict[str, Callable[[], nn.Module]] = {
    "torch.compile": lambda: torch.compile(network(), backend="aot_eager"),
    "model.compile": lambda: _compiled_in_place(),
    "DDP": lambda: DistributedDataParallel(network()),
}


def _compiled_in_place() -> nn.Module:
    model = network()
    model.compile(backend="aot_eager")
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", WORKING)
def test_wrapped_models_give_the_numbers_of_the_plain_one(wrapper: str) -> None:
    WORKING[wrapper]()(X)  # first calls import modules, which add filters of warnings
    for name, call in (MEASUREMENTS | COPIES | OTHERS).items():
        expected, model = call(network()), WORKING[wrapper]()
        before, state = global_state(), model_state(model)
        assert call(model) == pytest.approx(expected, rel=1e-4), name
        wrong = differences(before, global_state()) + differences(state, model_state(model))
        assert not wrong, (name, wrong)


FIXED: dict[str, Callable[[], nn.Module]] = {
    "script": lambda: torch.jit.script(network()),
    "trace": lambda: torch.jit.trace(network(), X),
    "scripted part": lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 6)), network()),
    "FSDP": lambda: FullyShardedDataParallel(network(), device_id=torch.device("cpu")),
    "fully_shard": lambda: _sharded(),
}


def _sharded() -> nn.Module:
    model = network()
    fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", FIXED)
def test_models_with_fixed_parameters_are_refused_in_one_line(wrapper: str) -> None:
    for name, call in MEASUREMENTS.items():
        with pytest.raises(ArgumentTypeError, match=r"; (pass|load) ") as caught:
            call(FIXED[wrapper]())
        assert "\n" not in str(caught.value), name


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", FIXED)
def test_copies_of_models_with_fixed_parameters_work_or_are_refused(wrapper: str) -> None:
    for name, call in COPIES.items():
        message = ""
        try:
            call(FIXED[wrapper]().eval())
        except NormscopeError as error:
            message = str(error)
        assert "\n" not in message, name


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", ["FSDP", "fully_shard"])
def test_sharded_models_train_and_evaluate(wrapper: str) -> None:
    found = []
    for model in (FIXED[wrapper](), network()):
        run = ns.fit(ns.Problem(model, "cross_entropy", (X, Y)), ns.sgd(0.1), steps=3)
        found.append([*run.losses, ns.training.evaluate(model, "cross_entropy", (X, Y)).loss])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def deep(levels: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    for _ in range(levels):
        model = nn.Sequential(model)
    return nn.Sequential(model, nn.Linear(6, 3))


@pytest.mark.parametrize("name", MEASUREMENTS | COPIES | OTHERS)
def test_modules_nested_beyond_the_recursion_limit_are_refused_in_one_line(name: str) -> None:
    model = deep(400)
    before, state = global_state(), model_state(model)
    with pytest.raises(NormscopeError) as caught:
        (MEASUREMENTS | COPIES | OTHERS)[name](model)
    assert "\n" not in str(caught.value)
    assert "recursion" in str(caught.value)
    wrong = differences(before, global_state()) + differences(state, model_state(model))
    assert not wrong


@pytest.mark.timeout(60)
def test_400_nested_modules_are_measured_under_a_higher_limit() -> None:
    limit = sys.getrecursionlimit()
    torch.manual_seed(0)
    model = deep(400)
    flat = nn.Sequential(*list(model.modules())[-3:-1], model[1])
    sys.setrecursionlimit(20_000)
    try:
        found = MEASUREMENTS["top_eigenvalue"](model)
    finally:
        sys.setrecursionlimit(limit)
    assert found == pytest.approx(MEASUREMENTS["top_eigenvalue"](flat), rel=1e-4)


@pytest.mark.timeout(120)
def test_a_million_classes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2), nn.Linear(2, 1_000_000))
    data = X[:4], torch.randint(1_000_000, (4,))
    assert ns.curvature.top_eigenvalue(model, "cross_entropy", data, kind="ggn").value > 0
    assert ns.training.evaluate(model, "cross_entropy", data).loss > 0
    with pytest.raises(NormscopeError, match="more than 20000 x 20000"):
        ns.curvature.dense(model, "cross_entropy", data)


def test_an_autocast_around_the_call_leaves_curvature_as_it_is() -> None:
    names = ("top_eigenvalue", "hessian", "trace")
    expected = [MEASUREMENTS[name](network()) for name in names]
    with torch.autocast("cpu", torch.bfloat16):
        found = [MEASUREMENTS[name](network()) for name in names]
        limit = MEASUREMENTS["max_learning_rate"](network())
    assert found == pytest.approx(expected, rel=1e-5)
    assert limit == pytest.approx(MEASUREMENTS["max_learning_rate"](network()), rel=0.3)
