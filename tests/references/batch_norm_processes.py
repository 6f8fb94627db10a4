"""What each of two processes does in the tests of shared statistics, and one process instead."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tests.references.process_exit import leave_group
from torch import func, nn

from normscope.errors import NormscopeError
from normscope.layers import BatchNorm1d, BatchNorm2d

# name: (sizes of the two parts, shape of a sample, dtype, momentum)
CASES = {
    "unequal": ((5, 9), (3,), torch.float32, 0.1),
    "unequal_double": ((5, 9), (3,), torch.float64, 0.1),
    "single_sample": ((1, 4), (3,), torch.float32, 0.1),
    "single_sample_double": ((1, 4), (3,), torch.float64, None),
    "images_double": ((2, 3), (3, 4, 4), torch.float64, 0.1),
    "empty_part_double": ((0, 6), (3,), torch.float64, 0.1),
    "large_mean": ((40, 24), (3,), torch.float32, 1.0),
}


def whole_batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch and the gradient that arrives at its output."""
    sizes, shape, dtype, _ = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    x, g = torch.randn(2, sum(sizes), *shape, generator=generator, dtype=dtype)
    x = 1e4 + 1e-2 * x if name == "large_mean" else 1 + 2 * x
    return x, g


def layer_for(name: str, process_group: object) -> nn.Module:
    """A fresh layer with weights that are not 1."""
    _, shape, dtype, momentum = CASES[name]
    make = BatchNorm1d if len(shape) == 1 else BatchNorm2d
    layer = make(3, momentum=momentum, dtype=dtype, process_group=process_group)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, -1.0, 2.0]))
    return layer


def step(layer: nn.Module, x: torch.Tensor, g: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output, gradients, second derivative and buffers after one step."""
    x = x.detach().clone().requires_grad_()
    output = layer(x)
    leaves = (x, layer.weight, layer.bias)
    first = torch.autograd.grad(output, leaves, g, create_graph=True)
    second = torch.autograd.grad(first[0].sin().sum(), (x, layer.weight))
    return {
        "output": output.detach(),
        "input_gradient": first[0].detach(),
        "weight_gradient": first[1].detach(),
        "bias_gradient": first[2].detach(),
        "second_input": second[0],
        "second_weight": second[1],
        **{name: buffer.clone() for name, buffer in layer.named_buffers()},
    }


def _message(action: object) -> str:
    try:
        action()  # type: ignore[operator]
    except NormscopeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _others(rank: int) -> dict[str, object]:
    """Everything but the main comparison."""
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    layer = BatchNorm1d(3, process_group=dist.group.WORLD).double()
    alone = [dist.new_group([member]) for member in range(2)]
    others: dict[str, object] = {"x": x}
    twin = copy.deepcopy(layer)
    others["copy_shares_group"] = twin.process_group is layer.process_group
    others["copied_output"] = twin(x).detach()
    others["alone"] = BatchNorm1d(3, process_group=alone[rank]).double()(x).detach()
    others["outsider"] = _message(lambda: BatchNorm1d(3, process_group=alone[1 - rank])(x))
    others["vmapped"] = func.vmap(layer)(torch.stack([x, 2 * x + x**2])).detach()
    others["gradient"] = func.grad(lambda x: layer(x).pow(3).sum())(x)
    others["jvp"] = _message(lambda: func.jvp(layer, (x,), (x,)))
    others["single_value"] = _message(lambda: layer(x[:1] if rank == 0 else x[:0]))
    others["compiled"] = torch.compile(copy.deepcopy(layer), backend="eager")(x).detach()
    if rank == 0:  # the other process never hears of it: eval must not wait for it
        others["eval"] = layer.eval()(x).detach()
        untracked = BatchNorm1d(3, track_running_stats=False, process_group="world").double()
        others["eval_untracked"] = untracked.eval()(x).detach()
    return others


def run(rank: int, folder: str) -> None:
    """One of the two processes: meet the other, compute, leave the results in the folder."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    results: dict[str, object] = {}
    for name, (sizes, *_) in CASES.items():
        part = slice(0, sizes[0]) if rank == 0 else slice(sizes[0], None)
        x, g = whole_batch(name)
        results[name] = step(layer_for(name, "world"), x[part], g[part])
    results["others"] = _others(rank)
    torch.save(results, Path(folder) / f"{rank}.pt")
    leave_group()
