"""What each of two processes does in the test of a scope on a distributed training."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tests.references.process_exit import leave_group
from torch import nn

import normscope as ns
from normscope.problem import cross_entropy


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (8,), generator=generator)


def run(rank: int, meeting: Path, folder: Path) -> None:
    """Train without and with a scope; write what is left of both."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{meeting}", timedelta(seconds=30), world_size=2, rank=rank
    )
    left = [_trained(rank, with_scope).state_dict() for with_scope in (False, True)]
    torch.save(left, folder / f"{rank}.pt")
    leave_group()


def _trained(rank: int, with_scope: bool) -> nn.Module:
    """A few steps with statistics shared by both processes."""
    model = ns.models.build(
        "fully_connected", input_shape=(1, 8, 8), width=9, norm_options={"process_group": "world"}
    )
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1, momentum=0.9)
    scope = ns.Scope(wrapped, "cross_entropy", optimizer, "full", every=2) if with_scope else None
    measured = 0
    for step in range(4):
        x, y = batch(10 * step + rank)
        optimizer.zero_grad()
        cross_entropy(wrapped(x), y).backward()
        if scope is not None:
            measured += scope.step(x, y)
        optimizer.step()
    if scope is not None:
        scope.close()
        assert measured == (2 if rank == 0 else 0)
        assert scope.results.sizes.get("step", 0) == measured
    return model
