"""A training process is killed with SIGKILL and its work resumed: the bits are those of one run."""

import subprocess
import sys
import time
from pathlib import Path

import torch

TRAINING = """
import sys, time, torch
from torch import nn
from normscope.problem import Problem
from normscope.models import build
from normscope.training import fit, sgd

RECIPES = {"momentum": sgd(0.05, momentum=0.9), "adam": lambda p: torch.optim.Adam(p, lr=0.01)}
torch.set_num_threads(1)
IMAGES = torch.randn(1000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(1000) % 10

def training(kind, checkpoint, pause=0.0):
    torch.manual_seed(11)  # of the dropout
    network = build("fully_connected", input_shape=(1, 8, 8), width=20, depth=3, seed=2)
    model = nn.Sequential(network, nn.Dropout(0.2), nn.Linear(10, 10))
    optimizer = RECIPES[kind](model.parameters())
    run = fit(
        Problem(model, "cross_entropy", (IMAGES, LABELS)),
        optimizer,
        steps=60,
        batch_size=100,
        seed=5,
        checkpoint=checkpoint,
        checkpoint_every=7,
        callback=lambda step: time.sleep(pause),
    )
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return states | {"losses": run.losses.tolist(), "random": torch.get_rng_state()}
"""
KILLED = TRAINING + "training(sys.argv[1], sys.argv[2], pause=0.2)"
RESUMED = (
    TRAINING
    + """
for kind, checkpoint in (("momentum", sys.argv[1]), ("adam", sys.argv[2])):
    states = {"resumed": training(kind, checkpoint), "whole": training(kind, None)}
    torch.save(states, f"{checkpoint}-states")
"""
)


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)])


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint appeared within two minutes"
        time.sleep(0.01)


def differing(a: object, b: object, place: str = "") -> list[str]:
    """Places at which two nested states differ."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return [found for key in a for found in differing(a[key], b[key], f"{place}/{key}")]
    if isinstance(a, list):
        assert len(a) == len(b)
        pairs = enumerate(zip(a, b, strict=True))
        return [found for i, (x, y) in pairs for found in differing(x, y, f"{place}/{i}")]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return [] if same else [place]


def test_killed_and_resumed_training_ends_with_the_same_bits(tmp_path):
    kinds = ("momentum", "adam")
    checkpoints = {kind: tmp_path / f"{kind}.pt" for kind in kinds}
    killed = {kind: start(KILLED, kind, checkpoints[kind]) for kind in kinds}
    for kind, process in killed.items():
        wait_for(checkpoints[kind], process)
        process.kill()
        assert process.wait(timeout=30) == -9
    assert start(RESUMED, *checkpoints.values()).wait(timeout=120) == 0
    for checkpoint in checkpoints.values():
        states = torch.load(f"{checkpoint}-states", weights_only=True)
        assert len(states["whole"]["losses"]) == 60
        assert differing(states["resumed"], states["whole"]) == []
