"""Two processes train one net with shared batch statistics; the one of rank 0 has a scope.

torchrun --nproc-per-node 2 examples/ddp_scope.py
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import normscope as ns
from normscope.integrations import write_netcdf

dist.init_process_group("gloo")
rank = dist.get_rank()
options = {"norm_options": {"process_group": "world"}}  # statistics over all processes
model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=50, **options)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
samples = TensorDataset(*ns.data.load("digits").train)
data = DataLoader(samples, 32, sampler=DistributedSampler(samples, seed=0), drop_last=True)
with ns.Scope(parallel, "cross_entropy", optimizer, probes="standard", every=10) as scope:
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(parallel(x), y).backward()
        scope.step(x, y)  # on every process; only rank 0 measures, and waits for no one
        optimizer.step()

# weights and statistics are the same everywhere
state = torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])
others = [torch.empty_like(state) for _ in range(dist.get_world_size())]
dist.all_gather(others, state)
assert all(torch.equal(state, other) for other in others)
if rank == 0:
    write_netcdf(scope.results, "scope.nc")
    print(f"{dist.get_world_size()} processes agree; {scope}")
dist.barrier()  # until rank 0 has written its file
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may abort an interpreter that shuts down (PyTorch issue 190489)
