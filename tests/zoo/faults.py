"""Networks with one planted fault each, and what `normscope.doctor` has to find where."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.zoo.convolutional import conv_norm
from tests.zoo.entry import CLASSES, images
from tests.zoo.registry import ZOO
from tests.zoo.structured import Siamese, Transfer
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

BATCH = 32


@dataclass
class Case:
    """A model in the form in which it is examined.

    Args:
        model: as its training starts.
        loss: as normscope takes it.
        data: two batches.
        optimizer: a factory, or None.
        deep: whether trial runs are needed.
    """

    model: nn.Module
    loss: Any
    data: list[Any]
    optimizer: Any = None
    deep: bool = False


@dataclass(frozen=True)
class Fault:
    """A fault to plant.

    Args:
        finding: the name that the doctor has for it.
        base: name of the network.
        plant: changes a case.
        modules: any of these is the right module.
        unseen: whether network and fault were written after the thresholds were chosen.
    """

    finding: str
    base: str
    plant: Callable[[Case], None]
    modules: tuple[str, ...]
    unseen: bool = False

    @property
    def name(self) -> str:
        """The fault and its network, unique."""
        return f"{self.finding} in {self.base} at {self.modules[0] or 'the model'}"

    def __str__(self) -> str:
        return self.name

    def build(self) -> Case:
        """Return the network with the fault."""
        case = build(self.base)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.plant(case)
        return case


BASES: dict[str, Callable[[], Case]] = {}
FAULTS: list[Fault] = []


def build(base: str) -> Case:
    """Return a healthy network by name, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BASES[base]()


def base(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a network under a name."""

    def register(function: Callable[[], Case]) -> Callable[[], Case]:
        BASES[name] = function
        return function

    return register


def fault(
    finding: str, where: str, *modules: str, unseen: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a function that plants a fault in a network."""

    def register(function: Callable[[Case], None]) -> Callable[[Case], None]:
        FAULTS.append(Fault(finding, where, function, modules, unseen))
        return function

    return register


def vectors(seed: int, samples: int = BATCH, features: int = 20) -> tuple[Tensor, Tensor]:
    """Return clusters of points, labelled by their cluster."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, features, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, features, generator=generator), labels


def pictures(seed: int, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return images of the zoo with labels."""
    return images(torch.Generator().manual_seed(seed), samples)


def zoo_case(name: str) -> Case:
    """Return a network of the zoo with two batches."""
    entry = ZOO[name]
    data = [entry.batch(seed, samples=BATCH) for seed in (0, 1)]
    return Case(entry.build(), entry.loss, data)


def train(case: Case, steps: int = 60, rate: float = 0.02) -> None:
    """Train a case for some steps, so that running statistics are collected."""
    loss = functional.cross_entropy if case.loss == "cross_entropy" else case.loss
    optimizer = SGD((p for p in case.model.parameters() if p.requires_grad), lr=rate)
    for step in range(steps):
        *inputs, target = case.data[step % len(case.data)]
        optimizer.zero_grad()
        loss(case.model(*inputs), target).backward()
        optimizer.step()
    optimizer.zero_grad()


def grouped(model: nn.Module, make: Callable[..., Any], decay: float, **options: Any) -> Any:
    """Return an optimizer that decays matrices alone."""
    named = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in named if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return make([group for group in groups if group["params"]], **options)


# Networks


class MLP(nn.Module):
    """Three hidden layers with batch norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = (20, width, width, width)
        self.layers = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in self.layers)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.relu(norm(layer(x)))
        return self.head(x)


@base("MLP")
def mlp() -> Case:
    """An MLP with batch norm and functional activations."""
    return Case(MLP(), "cross_entropy", [vectors(0), vectors(1)])


def plain_convolutional() -> nn.Sequential:
    """Return three convolutions with batch norm and a head."""
    return nn.Sequential(
        *conv_norm(3, 8), nn.ReLU(), *conv_norm(8, 16, 3, 2), nn.ReLU(), *conv_norm(16, 16, 3, 2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


@base("convolutional")
def convolutional() -> Case:
    """A plain convolutional network with batch norm."""
    return Case(plain_convolutional(), "cross_entropy", [pictures(0), pictures(1)])


@base("deep MLP")
def deep_mlp() -> Case:
    """Twenty tanh layers without normalization, orthogonal weights."""
    layers: list[nn.Module] = []
    for _ in range(20):
        linear = nn.Linear(20, 20)
        nn.init.orthogonal_(linear.weight, 1.1)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return Case(
        nn.Sequential(*layers, nn.Linear(20, CLASSES)), "cross_entropy", [vectors(0), vectors(1)]
    )


@base("fine-tuning")
def fine_tuning() -> Case:
    """A frozen ResNet with statistics of the data, in eval mode, and a head."""
    model = Transfer()
    case = Case(model, "cross_entropy", [pictures(0), pictures(1)])
    for _ in range(80):
        model(case.data[0][0])
    model.head[1].reset_running_stats()
    model.backbone.eval().requires_grad_(False)
    return case


@base("Siamese")
def siamese() -> Case:
    """Two images through one encoder."""
    return Case(Siamese(), *_of_zoo("Siamese"))


def _of_zoo(name: str) -> tuple[Any, list[Any]]:
    case = zoo_case(name)
    return case.loss, case.data


for _name in ("ResNet-18", "ViT", "GPT-2"):
    BASES[_name] = partial(zoo_case, _name)


# Faults of batch statistics


_LAST_STAGE = (
    "layer4.0.downsample.1",
    "layer4.0.bn1",
    "layer4.0.bn2",
    "layer4.1.bn1",
    "layer4.1.bn2",
)


@fault("few_samples", "ResNet-18", *_LAST_STAGE)
def tiny_batches(case: Case) -> None:
    """Batches of two."""
    case.data = [pictures(0, 2), pictures(1, 2)]


@fault("few_samples", "MLP", "norms.0", "norms.1", "norms.2")
def batches_of_three(case: Case) -> None:
    """Batches of three vectors."""
    case.data = [vectors(0, 3), vectors(1, 3)]


@fault("stale_statistics", "ResNet-18", "layer2.0.bn1")
def stale_layer(case: Case) -> None:
    """A layer whose running variance is that of other data."""
    train(case)
    case.model.layer2[0].bn1.running_var *= 100
    case.model.layer2[0].bn1.running_mean += 3


@fault("stale_statistics", "convolutional", "1", "4", "7")
def slow_momentum(case: Case) -> None:
    """A momentum of 1e-4: after 60 steps the statistics are still the initial ones."""
    for index in (1, 4, 7):
        case.model[index].momentum = 1e-4
    case.data = [(3 * x + 2, y) for x, y in case.data]
    train(case)


@fault("stale_statistics", "MLP", "norms.0", "norms.1", "norms.2")
def averaged_weights(case: Case) -> None:
    """Averaged weights in a copy whose statistics were never collected, in eval mode."""
    average = torch.optim.swa_utils.AveragedModel(case.model)
    train(case, rate=0.3)
    average.update_parameters(case.model)
    with torch.no_grad():
        for layer in average.module.layers:
            layer.weight *= 6
    case.model = average.module.eval()


@fault("frozen_norm_updates", "fine-tuning", "backbone.bn1")
def backbone_in_train_mode(case: Case) -> None:
    """model.train() after the backbone was frozen."""
    case.model.train()


@fault("frozen_norm_updates", "convolutional", "1", "4")
def norms_learn(case: Case) -> None:
    """Frozen convolutions, batch norm that learns."""
    for index in (0, 3):
        case.model[index].requires_grad_(False)


@fault("norm_in_eval", "ResNet-18", "layer3.0.bn1")
def one_norm_in_eval(case: Case) -> None:
    """One layer in eval mode, with initial statistics."""
    case.model.layer3[0].bn1.eval()


@fault("shared_statistics", "Siamese", "encoder.1", "encoder.4")
def two_domains(case: Case) -> None:
    """The second input has another scale and mean."""
    case.data = [(first, 4 * second + 3, same) for first, second, same in case.data]


@fault("half_precision_statistics", "convolutional", "1", "4", "7")
def bfloat16_statistics(case: Case) -> None:
    """Everything in bfloat16, with a slow momentum."""
    case.model.bfloat16()
    for index in (1, 4, 7):
        case.model[index].momentum = 0.01


# Faults of layers


@fault("large_eps", "convolutional", "4")
def epsilon_of_one(case: Case) -> None:
    """An epsilon that is larger than the variance."""
    case.model[4].eps = 1.0


@fault("large_eps", "ViT", "blocks.0.norm1", "blocks.1.norm1", "norm")
def tiny_tokens(case: Case) -> None:
    """A layer norm with the epsilon of another library's default, on small tokens."""
    for module in case.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 10.0


@fault("bias_before_norm", "convolutional", "3")
def convolution_with_bias(case: Case) -> None:
    """A convolution that keeps its default bias."""
    case.model[3] = nn.Conv2d(8, 16, 3, 2, 1)


@fault("bias_before_norm", "MLP", "layers.1")
def linear_with_bias(case: Case) -> None:
    """A linear layer with a bias."""
    case.model.layers[1] = nn.Linear(32, 32)


@fault("norm_before_output", "convolutional", "12")
def normalized_logits(case: Case) -> None:
    """Batch norm over the logits."""
    case.model.append(nn.BatchNorm1d(CLASSES))


@fault("softmax_before_cross_entropy", "convolutional", "12")
def softmax_twice(case: Case) -> None:
    """Probabilities instead of logits."""
    case.model.append(nn.Softmax(1))


# Faults of signals


@fault("dead_channels", "ResNet-18", "layer2.0.bn1")
def dead_norm(case: Case) -> None:
    """A shift that no input exceeds, in most channels."""
    with torch.no_grad():
        case.model.layer2[0].bn1.bias[:8] = -20


@fault("dead_channels", "MLP", "norms.1")
def dead_units(case: Case) -> None:
    """Dead units before a functional activation."""
    with torch.no_grad():
        case.model.norms[1].bias[:24] = -20


@fault("constant_inputs", "MLP", "")
def constant_features(case: Case) -> None:
    """Half of the features are missing."""
    for inputs, _ in case.data:
        inputs[:, ::2] = 0.7


@fault("collapsed_outputs", "deep MLP", "18", "19")
def zeroed_layer(case: Case) -> None:
    """A layer whose weights were lost."""
    with torch.no_grad():
        case.model[18].weight.zero_()
        case.model[18].bias.fill_(0.5)


@fault("exploding_gradients", "deep MLP", "0")
def large_weights(case: Case) -> None:
    """Weights of gain 2.5 without the tanh."""
    for index, layer in enumerate(case.model):
        if isinstance(layer, nn.Tanh):
            case.model[index] = nn.LeakyReLU(0.5)
        elif isinstance(layer, nn.Linear):
            with torch.no_grad():
                layer.weight *= 2


@fault("vanishing_gradients", "deep MLP", "0")
def sigmoids(case: Case) -> None:
    """Sigmoids in place of tanh."""
    for index, layer in enumerate(case.model):
        if isinstance(layer, nn.Tanh):
            case.model[index] = nn.Sigmoid()


class Root(nn.Module):
    """Square root of the positive part: its derivative at 0 is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * (x > 0)).sqrt()


class Logarithm(nn.Module):
    """Logarithm, of negative inputs NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


@fault("non_finite", "convolutional", "5")
def infinite_derivative(case: Case) -> None:
    """An activation with an infinite derivative at 0."""
    case.model[5] = Root()


@fault("non_finite", "ResNet-18", "layer3.1.bn2")
def overflow(case: Case) -> None:
    """A weight that is not a number."""
    with torch.no_grad():
        case.model.layer3[1].bn2.weight[0] = float("nan")


# Faults of training


@fault("sum_reduction", "convolutional", "loss")
def summed_loss(case: Case) -> None:
    """A sum over the samples."""
    case.loss = nn.CrossEntropyLoss(reduction="sum")


@fault("decayed_norm", "ViT", *(n for n, _ in ZOO["ViT"].build().named_modules()))
def decay_of_everything(case: Case) -> None:
    """AdamW with one group."""
    case.optimizer = partial(AdamW, lr=1e-3, weight_decay=0.1)


@fault("learning_rate_too_high", "ResNet-18", "optimizer")
def huge_rate(case: Case) -> None:
    """SGD far above the limit."""
    case.optimizer = partial(SGD, lr=100.0)


@fault("learning_rate_too_high", "GPT-2", "optimizer")
def huge_adam_rate(case: Case) -> None:
    """Adam far above the limit."""
    case.optimizer = partial(Adam, lr=3.0)


@fault("saturated_attention", "GPT-2", *(n for n, _ in ZOO["GPT-2"].build().named_modules()))
def large_logits(case: Case) -> None:
    """Query and key weights of forty times the size."""
    with torch.no_grad():
        for name, parameter in case.model.named_parameters():
            if "attn" in name and parameter.dim() == 2 and parameter.shape[0] != parameter.shape[1]:
                parameter *= 40


@fault("warmup_needed", "MLP", "optimizer")
def large_first_logits(case: Case) -> None:
    """A head of large weights: the first steps are unstable, later ones are not."""
    with torch.no_grad():
        case.model.head.weight *= 8
    case.optimizer, case.deep = partial(SGD, lr=2.0), True


@fault("growing_attention", "ViT", "blocks.0", "blocks.1")
def rate_that_attention_does_not_take(case: Case) -> None:
    """Adam at a rate at which the loss stays low and attention logits grow."""
    case.optimizer, case.deep = partial(Adam, lr=0.1), True


# Networks and faults that were written after all thresholds were chosen


class Inception1d(nn.Module):
    """Parallel convolutions of several lengths over a time series, with functional activations."""

    def __init__(self, inputs: int, width: int = 6) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(inputs, width, 1, bias=False)
        self.branches = nn.ModuleList(
            nn.Conv1d(width, width, size, padding=size // 2, bias=False) for size in (3, 5, 9)
        )
        self.norm = nn.BatchNorm1d(3 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bottleneck(x)
        return functional.relu(self.norm(torch.cat([each(x) for each in self.branches], dim=1)))


class SeriesNet(nn.Module):
    """Three such blocks, the mean over time, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inception1d(2), Inception1d(18), Inception1d(18)])
        self.head = nn.Linear(18, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(-1))


class ConformerBlock(nn.Module):
    """Attention, a depthwise convolution with batch norm, and an MLP, each beside a shortcut."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(size) for _ in range(3))
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)
        self.depthwise = nn.Conv1d(size, size, 3, padding=1, groups=size, bias=False)
        self.batch_norm = nn.BatchNorm1d(size)
        self.pointwise = nn.Conv1d(size, size, 1)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = self.depthwise(self.norm2(x).transpose(1, 2))
        x = x + self.pointwise(functional.silu(self.batch_norm(y))).transpose(1, 2)
        return x + self.mlp(self.norm3(x))


class Conformer(nn.Module):
    """Two blocks over a time series."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(2, size)
        self.blocks = nn.ModuleList([ConformerBlock(size), ConformerBlock(size)])
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def series(seed: int, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return the zoo's waves with labels."""
    return ZOO["weight-norm TCN"].batch(seed, samples=samples)


@base("InceptionTime")
def inception_time() -> Case:
    """A network for time series."""
    return Case(SeriesNet(), "cross_entropy", [series(0), series(1)])


@base("Conformer")
def conformer() -> Case:
    """Attention and convolutions for time series."""
    return Case(Conformer(), "cross_entropy", [series(0), series(1)])


@fault("stale_statistics", "InceptionTime", "blocks.1.norm", unseen=True)
def statistics_of_other_data(case: Case) -> None:
    """Statistics of a layer from data of another scale."""
    train(case)
    case.model.blocks[1].norm.running_mean += 2
    case.model.blocks[1].norm.running_var *= 30


@fault("dead_channels", "InceptionTime", "blocks.0.norm", unseen=True)
def dead_in_the_first_block(case: Case) -> None:
    """Two thirds of the channels shifted below zero."""
    with torch.no_grad():
        case.model.blocks[0].norm.bias[6:] = -15


@fault("norm_in_eval", "InceptionTime", "blocks.2.norm", unseen=True)
def last_norm_in_eval(case: Case) -> None:
    """The last norm layer in eval mode."""
    case.model.blocks[2].norm.eval()


@fault("saturated_attention", "Conformer", "blocks.0.attention", unseen=True)
def large_projection(case: Case) -> None:
    """Query and key projections of one block, thirty times as large."""
    with torch.no_grad():
        case.model.blocks[0].attention.in_proj_weight[:32] *= 30


@fault("large_eps", "Conformer", "blocks.1.norm2", unseen=True)
def epsilon_typed_wrong(case: Case) -> None:
    """1e5 in place of 1e-5."""
    case.model.blocks[1].norm2.eps = 1e5


@fault("non_finite", "Conformer", "blocks.1.mlp.0", unseen=True)
def overflowing_weights(case: Case) -> None:
    """Weights whose products overflow."""
    with torch.no_grad():
        case.model.blocks[1].mlp[0].weight.fill_(3e38)


# Healthy networks


def trained(name: str) -> Case:
    """Return a network of the zoo or of this file after 60 steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        case = build(name) if name in BASES else zoo_case(name)
        train(case)
    return case


def _in_use(name: str) -> Case:
    case = trained(name)
    case.model.eval()
    return case


HEALTHY: dict[str, Callable[[], Case]] = {
    # the zoo's own has random statistics; "fine-tuning" has those of its data
    **{name: partial(zoo_case, name) for name in ZOO if name != "frozen backbone"},
    **{name: partial(build, name) for name in ("fine-tuning", "MLP", "convolutional", "deep MLP")},
    **{name: partial(build, name) for name in ("InceptionTime", "Conformer")},
    "ResNet-18, trained": partial(trained, "ResNet-18"),
    "DenseNet, trained": partial(trained, "DenseNet"),
    "convolutional, trained, in use": partial(_in_use, "convolutional"),
}
"""Networks without a planted fault."""


def with_healthy_optimizer(case: Case) -> Case:
    """Give a case AdamW at a moderate rate, with decay of matrices alone."""
    case.optimizer = grouped(case.model, AdamW, 1e-2, lr=1e-3)
    return case
