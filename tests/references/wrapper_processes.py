"""Sharded models, and what each of two processes measures of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.references.process_exit import leave_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import normscope as ns


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _fsdp(model: nn.Module, **options: Any) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


def _nested_fsdp(model: nn.Module) -> nn.Module:
    model[3] = _fsdp(model[3])
    return _fsdp(model)


def _fully_shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[3], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _tensor_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"3": RowwiseParallel(input_layouts=Replicate())})


SHARDED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "FSDP": _fsdp,
    "FSDP, original parameters": lambda model: _fsdp(model, use_orig_params=True),
    "FSDP, nested": _nested_fsdp,
    "fully_shard": _fully_shard,
    "tensor parallel": _tensor_parallel,
}
"""Wrappers of `network`, to be called by all processes of a group."""


def shards(model: nn.Module) -> dict[str, tuple[int, bytes]]:
    """The parameters and buffers of this process: identities and bits."""
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        own: Any = tensor.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        found[name] = id(tensor), own.clone().numpy().tobytes()
    return found


def measure(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    """Numbers that differ between the processes, since their data do."""
    loss = "cross_entropy"
    (layer,) = (n for n, each in model.named_modules() if isinstance(each, nn.BatchNorm1d))
    limit = ns.max_learning_rate(model, loss, data)
    checked = ns.theorems.check_layer(model, loss, data, layer)
    return [
        ns.curvature.top_eigenvalue(model, loss, data, kind="hessian").value,
        ns.curvature.trace(model, loss, data).value,
        limit.limit,
        limit.predicted,
        ns.training.evaluate(model, loss, data).loss,
        float(ns.layers.convert(model, "layer")(data[0]).sum()),
        sum(each.to_dict()["lhs"] for each in checked),
    ]


def run(rank: int, meeting: Path, folder: Path) -> None:
    """Measure every wrapper on this process's data; write the numbers."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{meeting}", limit, world_size=2, rank=rank)
    generator = torch.Generator().manual_seed(rank)
    size = 16 + rank  # other sizes too: no process waits for the passes of the other
    data = torch.randn(size, 6, generator=generator), torch.arange(size) % 3
    results = {"plain": {"found": measure(network(), data), "same": True}}
    for name, wrap in {**SHARDED, "DDP": DistributedDataParallel}.items():
        model = wrap(network())
        before = shards(model)
        results[name] = {"found": measure(model, data), "same": shards(model) == before}
    torch.save(results, folder / f"{rank}.pt")
    leave_group()
