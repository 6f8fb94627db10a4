"""No observer effect: a training ends in the same bits with every probe and without any."""

import random

import lightning
import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.probes import (
    PROBES,
    ActivationMoments,
    EffectiveSmoothness,
    Scope,
    Stability,
    StatisticsGap,
)
from normscope.problem import cross_entropy

STEPS = 50


class DropoutNet(nn.Module):
    """Dropout, noise from NumPy and Python, a generator of its own, a hook, a counter."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.drop = nn.Dropout2d(0.2)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 10))
        self.generator = torch.Generator().manual_seed(5)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen += x.mean().detach()
        noise = torch.randn(x.shape, generator=self.generator) * np.random.rand()  # noqa: NPY002
        return self.head(self.drop(self.features(x + 0.1 * noise * random.random())))


class Lit(lightning.LightningModule):
    """A Lightning module, used as the model of a plain loop."""

    def __init__(self):
        super().__init__()
        self.net = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=8, depth=3)

    def forward(self, x):
        return self.net(x)


def built(name, **options):
    return lambda: ns.models.build(name, **options)


SMALL = {"input_shape": (1, 8, 8)}
MODELS = {
    "fully_connected": built("fully_connected", width=12, depth=3, norm="noisy", **SMALL),
    "conv_net": built("conv_net", channels=(4, 5), **SMALL),
    "vgg": built("vgg", width=1 / 32, input_shape=(1, 32, 32)),
    "deep_linear": built("deep_linear", depth=6, width=8, **SMALL),
    "preact_resnet18": built("preact_resnet18", width=1 / 32, **SMALL),
    "lightning": Lit,
    "dropout": DropoutNet,
}
SIZES = {"vgg": 32}
CONFIGURED = {
    "activation_moments": ActivationMoments(bins=5),
    "effective_smoothness": EffectiveSmoothness(local=True),
    "stability": Stability(sharpness=True, preconditioned_sharpness=True, batch_sharpness=True),
    "statistics_gap": StatisticsGap(),
}


def batches(name):
    size = SIZES.get(name, 8)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 8, 1, size, size, generator=generator)
    return x, torch.randint(0, 10, (4, 8), generator=generator)


def seeded():
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - a model may draw from it


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list | tuple) else value


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def everything(model, optimizer):
    """All that a training leaves: model, gradients, optimizer, flags, random states."""
    state = {
        "model": dict(model.state_dict()),
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer": optimizer.state_dict(),
        "flags": [module.training for module in model.modules()],
        "calls": getattr(model, "calls", 0),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - see above
    }
    if isinstance(model, DropoutNet):
        state["own generator"] = model.generator.get_state()
    return copied(state)


def train(name, probes, optimizer_kind="momentum", steps=STEPS, every=7):
    seeded()
    model = MODELS[name]()
    optimizer = {
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "adam": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    }[optimizer_kind](model.parameters())
    x, y = batches(name)
    scope = Scope(model, "cross_entropy", optimizer, probes, every) if probes else None
    for step in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x[step % 4]), y[step % 4]).backward()
        if scope is not None:
            scope.step(x[step % 4], y[step % 4])
        optimizer.step()
    if scope is not None:
        scope.close()
        assert scope.results.sizes["step"] == -(-steps // every)
    return everything(model, optimizer)


_PLAIN = {}


def plain(name, kind="momentum"):
    if (name, kind) not in _PLAIN:
        _PLAIN[name, kind] = train(name, None, kind)
    return _PLAIN[name, kind]


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("name", MODELS)
def test_training_ends_in_the_same_bits(name, probe):
    every = 25 if name in ("preact_resnet18", "vgg") else 7
    assert same(plain(name), train(name, [CONFIGURED.get(probe, probe)], every=every))


@pytest.mark.parametrize("name", ["conv_net", "dropout"])
def test_all_probes_together_change_nothing(name):
    assert same(plain(name, "adam"), train(name, "all", "adam"))


def test_comparison_sees_a_difference():
    once, again = plain("conv_net"), train("conv_net", None)
    assert same(once, again)
    for part in ("model", "optimizer", "torch", "numpy", "python"):
        assert not same(once[part], train("conv_net", None, steps=STEPS - 1)[part]) or part in (
            "torch",  # this net draws nothing
            "numpy",
            "python",
        )
    other = train("dropout", None, steps=STEPS - 1)
    assert not same(plain("dropout")["torch"], other["torch"])
    assert not same(plain("dropout")["numpy"], other["numpy"])
    assert not same(plain("dropout")["python"], other["python"])


@pytest.mark.parametrize("with_scaler", [True, False])
def test_accumulated_and_scaled_gradients_are_left_alone(with_scaler):
    def trained(with_scope):
        seeded()
        model = MODELS["conv_net"]()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=with_scaler)
        scope = Scope(model, "cross_entropy", optimizer, "all", every=2) if with_scope else None
        x, y = batches("conv_net")
        for _ in range(6):
            optimizer.zero_grad()
            for part in range(4):  # four batches make one update
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = cross_entropy(model(x[part]), y[part]) / 4
                scaler.scale(loss).backward()
            if scope is not None:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    scope.step(x[3], y[3])
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return everything(model, optimizer), scaler.state_dict()

    assert same(trained(True), trained(False))
