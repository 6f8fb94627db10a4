"""The 24 networks of ``learning_rate_choice.py``: architecture, data, loss and optimizer of each.

Most are those of ``tests/zoo`` with ten classes, on CIFAR-10 reduced to 16x16 or on MNIST; language
models of transformers read the characters of Python's own sources. The samples of 500 steps are
all different, so that the loss of training is that of new data. The networks with ``held_out=True``
were chosen before any run; nothing in normscope was tuned on them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import Optimizer

from normscope.data import load
from normscope.problem.batch import rows, sample_count

sys.path.append(str(Path(__file__).parents[1]))  # of tests.zoo

from tests.zoo import convolutional, generative, structured
from tests.zoo import tokens as patches
from tests.zoo.entry import CLASSES as ZOO_CLASSES
from tests.zoo.registry import googlenet_loss, googlenet_tensors, loss_of_output

STEPS = 500
CLASSES = 10
TEST_SAMPLES = 512
CHARACTERS, LENGTH = 97, 32  # printable ASCII, the newline, and a token for masked positions
MASK = CHARACTERS - 1
TEXTS = (
    "argparse",
    "ast",
    "difflib",
    "doctest",
    "inspect",
    "pickle",
    "tarfile",
    "turtle",
    "typing",
)

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "AdamW": torch.optim.AdamW,
}
RATES = {"SGD": (2e-3, 4.0), "momentum": (3e-4, 0.6), "AdamW": (1e-5, 2e-2)}
"""First and last rate of the grid by optimizer; it is extended where the best is at an end."""


@dataclass(frozen=True)
class Network:
    """A network as it is trained.

    Args:
        name: of the network.
        make: returns the model, drawn from the global RNG.
        draw: ``draw(count)`` returns one batch of that many samples, always the same; or with
            ``batched`` a list of that many batches.
        optimizer: a name of `OPTIMIZERS`.
        loss: as normscope takes it: ``loss(output, target)`` or "model".
        batch_size: samples per step.
        held_out: whether nothing may be tuned on it.
        batched: whether the samples come in batches that cannot be cut, such as graphs.
    """

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[int], Any]
    optimizer: str
    loss: Any = functional.cross_entropy
    batch_size: int = 64
    held_out: bool = False
    batched: bool = False

    def model(self) -> nn.Module:
        """The network at its initial weights, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make().train()

    def samples(self) -> Any:
        """The training data: one batch of all samples, or a list of batches."""
        return _parts(self)[0]

    def batches(self, order: int) -> list[Any]:
        """The batches of 500 steps in the order of a seed."""
        return _batches(self, order)

    def test_batches(self) -> list[Any]:
        """Batches of samples that training does not see."""
        rest = _parts(self)[1]
        if self.batched:
            return rest
        return [rows(rest, index) for index in torch.arange(TEST_SAMPLES).split(self.batch_size)]

    def loss_of(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of one batch, by the plain rules of a training loop."""
        if isinstance(batch, Mapping):
            return model(**batch).loss
        *inputs, target = batch
        return self.loss(model(*inputs), target)

    def new_optimizer(self, model: nn.Module, rate: float) -> Optimizer:
        """The optimizer with a learning rate."""
        return self.optimizer_of(model.parameters(), rate)

    def optimizer_of(self, parameters: Iterable[Any], rate: float) -> Optimizer:
        """The optimizer of parameters, as a factory makes it."""
        return OPTIMIZERS[self.optimizer](parameters, lr=rate)


@functools.lru_cache(maxsize=1)
def _parts(network: Network) -> tuple[Any, Any]:
    """Training data and test data."""
    if network.batched:
        data = network.draw(STEPS + TEST_SAMPLES // network.batch_size)
        return data[:STEPS], data[STEPS:]
    count = STEPS * network.batch_size
    data = network.draw(count + TEST_SAMPLES)
    index = torch.arange(count + TEST_SAMPLES)
    return rows(data, index[:count]), rows(data, index[count:])


@functools.lru_cache(maxsize=2)  # the orders of one network
def _batches(network: Network, order: int) -> list[Any]:
    data, generator = network.samples(), torch.Generator().manual_seed(order)
    if network.batched:
        return [data[i] for i in torch.randperm(STEPS, generator=generator)]
    index = torch.randperm(sample_count(data), generator=generator)
    return [rows(data, part) for part in index.split(network.batch_size)]


@functools.cache
def _images(name: str, crop: int, pool: int) -> tuple[Tensor, Tensor]:
    """Images cropped to the middle and averaged over squares, with labels."""
    x, y = load(name).train
    margin = (x.shape[-1] - crop) // 2
    x = x[:, :, margin : margin + crop, margin : margin + crop]
    return functional.avg_pool2d(x, pool), y


def cifar(count: int) -> tuple[Tensor, Tensor]:
    """CIFAR-10 at 16x16."""
    x, y = _images("cifar10", 32, 2)
    return x[:count], y[:count]


def digit_rows(count: int) -> tuple[Tensor, Tensor]:
    """MNIST at 14x14: 14 channels, a sequence of 14 columns."""
    x, y = _images("mnist", 28, 2)
    return x[:count, 0], y[:count]


def small_digits(count: int) -> Tensor:
    """MNIST at 8x8, from 0 to 1."""
    x = _images("mnist", 24, 3)[0]
    return ((x - x.min()) / (x.max() - x.min()))[:count]


def reconstruction(count: int) -> tuple[Tensor, Tensor]:
    """Digits that are their own targets."""
    x = small_digits(count)
    return x, x


def diffusion(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy digits, times from 0 to 1, and the noise."""
    generator = torch.Generator().manual_seed(1)
    image = 4 * small_digits(count) - 1
    noise, time = (
        torch.randn(image.shape, generator=generator),
        torch.rand(count, generator=generator),
    )
    angle = time.view(-1, 1, 1, 1) * torch.pi / 2
    return angle.cos() * image + angle.sin() * noise, time, noise


def digit_and_table(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Digits of three equal channels, table rows, and a number that depends on both."""
    generator = torch.Generator().manual_seed(1)
    x, y = _images("mnist", 28, 2)
    table = torch.randn(count, 5, generator=generator)
    target = (y[:count] - 4.5) / 3 + table[:, 0] * table[:, 1] + table[:, 2:].sum(1) / 2
    return x[:count].expand(-1, 3, -1, -1), table, target[:, None]


def graphs(count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Graphs of 64 noisy digits; of their edges six in ten join digits of one class."""
    generator = torch.Generator().manual_seed(1)
    x, y = _images("mnist", 28, 4)
    x = x.flatten(1) + torch.randn(len(x), 49, generator=generator)
    return [
        _graph(x[64 * i : 64 * (i + 1)], y[64 * i : 64 * (i + 1)], generator) for i in range(count)
    ]


def _graph(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    same = (y[:, None] == y).float()
    weight = 0.6 * same / same.sum(1, keepdim=True) + 0.4 / len(y)
    neighbours = torch.multinomial(weight, 2, generator=generator)
    edges = torch.stack([torch.arange(len(y)).repeat_interleave(2), neighbours.flatten()])
    return x, torch.cat([edges, edges.flip(0)], dim=1), y


@functools.cache
def _windows(count: int) -> Tensor:
    """Sequences of characters of Python's sources, at random places."""
    sources = (Path(importlib.import_module(name).__file__ or "") for name in TEXTS)
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    codes = torch.tensor(
        [95 if c == "\n" else ord(c) - 32 for c in text if c == "\n" or 32 <= ord(c) < 127]
    )
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(len(codes) - LENGTH, (count,), generator=generator)
    return codes[first[:, None] + torch.arange(LENGTH)]


def next_character(count: int) -> tuple[Tensor, Tensor]:
    """Sequences of characters, each labelled by the next."""
    ids = _windows(count)
    return ids[:, :-1], ids[:, 1:]


def causal_text(count: int) -> dict[str, Tensor]:
    """Sequences that are their own labels; the model shifts them."""
    ids = _windows(count)
    return {"input_ids": ids, "labels": ids}


def masked_text(count: int) -> dict[str, Tensor]:
    """Sequences of which one position in five is masked, and labelled."""
    ids = _windows(count)
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.2
    hidden[:, LENGTH // 2] = True  # at least one
    return {
        "input_ids": ids.masked_fill(hidden, MASK),
        "attention_mask": torch.ones_like(ids),
        "labels": ids.masked_fill(~hidden, -100),
    }


def ten_classes(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return what makes a network of the zoo, its last layers with ten classes."""

    def build() -> nn.Module:
        model = make()
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear) and child.out_features == ZOO_CLASSES:
                    setattr(module, name, nn.Linear(child.in_features, CLASSES))
        return model

    return build


def mlp(normed: bool) -> nn.Sequential:
    """Four linear layers with ReLU, with batch norm or without."""
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs in (768, 128, 128):
        parts += [nn.Linear(inputs, 128), *[nn.BatchNorm1d(128)] * normed, nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(128, CLASSES))


def plain_convolutional() -> nn.Sequential:
    """Four convolutions with ReLU and no normalization."""
    parts: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 16, 1), (16, 24, 2), (24, 32, 1), (32, 48, 2)):
        parts += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, CLASSES))


def temporal_network() -> nn.Module:
    """The zoo's TCN with weight norm, over the rows of digits."""
    model = generative.TemporalNetwork(CLASSES)
    model.blocks[0] = generative.TemporalBlock(14, 12, 1, parametrizations.weight_norm)
    return model


class CharacterLSTM(nn.Module):
    """LSTM language model; scores as (samples, characters, length), as cross-entropy takes."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.scores = nn.Linear(size, CHARACTERS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(self.lstm(self.embedding(ids))[0]).transpose(1, 2)


SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def gpt2() -> nn.Module:
    """GPT-2 of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": LENGTH}
    config = GPT2Config(vocab_size=CHARACTERS, use_cache=False, **sizes, **dropout, **NO_TOKENS)
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = SIZES | {"intermediate_size": 96, "num_key_value_heads": 1}
    sizes["max_position_embeddings"] = LENGTH
    config = LlamaConfig(vocab_size=CHARACTERS, use_cache=False, **sizes, **NO_TOKENS)
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    """BERT of transformers for masked positions, without dropout."""
    from transformers import BertConfig, BertForMaskedLM

    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = SIZES | {"intermediate_size": 96, "max_position_embeddings": LENGTH}
    return BertForMaskedLM(BertConfig(vocab_size=CHARACTERS, **sizes, **dropout))


def per_sample_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance per sample."""
    return (output - target).square().sum() / (2 * len(output))


def _zoo(name: str, make: Callable[[], nn.Module], optimizer: str, **options: Any) -> Network:
    return Network(name, ten_classes(make), cifar, optimizer, **options)


smoothed_cross_entropy = functools.partial(functional.cross_entropy, label_smoothing=0.1)

_ALL = [
    Network("MLP", lambda: mlp(False), cifar, "SGD"),
    Network("MLP batch norm", lambda: mlp(True), cifar, "SGD", held_out=True),
    Network("plain conv", plain_convolutional, cifar, "SGD"),
    _zoo("ResNet-18", convolutional.ResNet18, "SGD", batch_size=32),
    _zoo("DenseNet", convolutional.DenseNet, "SGD", batch_size=32),
    Network("LSTM", CharacterLSTM, next_character, "SGD", batch_size=32),
    Network(
        "GNN",
        ten_classes(lambda: structured.GraphNetwork(49, 32)),
        graphs,
        "SGD",
        held_out=True,
        batched=True,
    ),
    _zoo("ResMLP", lambda: patches.PatchNetwork(patches.ResMLPBlock, patches.Affine), "SGD"),
    _zoo("MobileNetV3", convolutional.MobileNetV3, "momentum"),
    _zoo("EfficientNet", convolutional.EfficientNet, "momentum"),
    _zoo("ShuffleNet", convolutional.ShuffleNet, "momentum", batch_size=32, held_out=True),
    _zoo("NFNet", patches.NFNet, "momentum", batch_size=32, held_out=True),
    _zoo(
        "GoogLeNet",
        convolutional.GoogLeNet,
        "momentum",
        loss=loss_of_output(googlenet_loss, googlenet_tensors),
        batch_size=32,
    ),
    Network("TCN", temporal_network, digit_rows, "momentum", loss=smoothed_cross_entropy),
    Network(
        "autoencoder",
        generative.l1_autoencoder,
        reconstruction,
        "momentum",
        loss=per_sample_squared_error,
    ),
    Network(
        "two inputs",
        structured.TwoInputs,
        digit_and_table,
        "momentum",
        loss=functional.mse_loss,
        held_out=True,
    ),
    _zoo("ConvNeXt", patches.ConvNeXt, "AdamW"),
    _zoo("ViT", patches.ViT, "AdamW"),
    _zoo("Swin", patches.Swin, "AdamW", batch_size=32, held_out=True),
    Network("GPT-2", gpt2, causal_text, "AdamW", loss="model", batch_size=32),
    Network("Llama", llama, causal_text, "AdamW", loss="model", batch_size=32, held_out=True),
    Network("BERT", bert, masked_text, "AdamW", loss="model", batch_size=32),
    Network(
        "VAE",
        lambda: generative.VAE(8),
        reconstruction,
        "AdamW",
        loss=loss_of_output(generative.vae_loss, tuple),
    ),
    Network(
        "diffusion UNet",
        generative.DiffusionUNet,
        diffusion,
        "AdamW",
        loss=functional.mse_loss,
        held_out=True,
    ),
]
NETWORKS = {network.name: network for network in _ALL}
