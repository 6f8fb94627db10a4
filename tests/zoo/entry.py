"""What an entry of the zoo is, and the random data that entries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 4
IMAGE = (3, 16, 16)


@dataclass(frozen=True)
class Entry:
    """A network that people train, in small, with its loss and its data.

    ``build`` and ``batch`` are functions of their seeds alone and leave the global random numbers
    as they are.

    Args:
        name: of the architecture, unique in the registry.
        make: returns the model as its training starts, flags included, drawn from the global RNG.
        draw: ``draw(generator, samples)`` returns one batch.
        loss: as normscope takes it.
        plain_loss: ``plain_loss(*tensors, batch)`` from the tensors that the loss reads; what
            references compute with.
        tensors: the tensors that the loss reads, from what the model returned.
        samples: in a batch of the tests; enough for batch statistics.
        mode: in which the curvature is measured: "train", or "as_is" for frozen parts.
        make_plain: returns the same function of the same parameters in operations whose second
            derivative torch knows; None where ``make`` is made of these.
        convert_to: the kind of norm that ``convert`` and ``compare`` are asked for.
        layer: name of a batch norm layer, for ``check_layer``; None if there is none.
        input_shape: of one sample, for ``meanfield.predict``; None: the model takes no such input.
        tolerance: relative, of numbers in the model's own dtype against float64.
        loss_precision: relative, of the loss of the model in float64.
    """

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator, int], Any]
    loss: Any
    plain_loss: Callable[..., Tensor]
    tensors: Callable[[Any], tuple[Tensor, ...]] = lambda output: (output,)
    samples: int = 6
    mode: str = "train"
    make_plain: Callable[[], nn.Module] | None = None
    convert_to: str = "layer"
    layer: str | None = None
    input_shape: tuple[int, ...] | None = None
    tolerance: float = 1e-4
    loss_precision: float = 1e-10

    def build(self, seed: int = 0) -> nn.Module:
        """Return the model of a seed, as its training starts."""
        return _seeded(self.make, seed)

    def build_plain(self, seed: int = 0) -> nn.Module:
        """Return a model for references: the same function, every derivative by autograd."""
        model = self.build(seed)
        if self.make_plain is None:
            return model
        plain = _seeded(self.make_plain, seed)
        plain.load_state_dict(model.state_dict())
        return plain

    def batch(self, seed: int = 0, samples: int | None = None) -> Any:
        """Return one batch, the same for the same arguments."""
        return self.draw(torch.Generator().manual_seed(seed), samples or self.samples)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def call(model: nn.Module, batch: Any) -> Any:
    """Return what the model returns for a batch, called as its training loop calls it."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if is_graph(batch):
        return model(batch)
    *inputs, _ = batch
    return model(*inputs)


def is_graph(batch: Any) -> bool:
    """Return whether a batch is a graph of torch_geometric."""
    return any(base.__module__.startswith("torch_geometric") for base in type(batch).__mro__)


def target_of(batch: Any) -> Any:
    """Return the target of a batch."""
    if is_graph(batch):
        return batch.y
    return batch["labels"] if isinstance(batch, Mapping) else batch[-1]


def images(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
    """Return noisy images of as many patterns as there are classes, with their labels."""
    patterns = torch.randn(CLASSES, *IMAGE, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return patterns[labels] + torch.randn(samples, *IMAGE, generator=generator), labels


def tokens(generator: torch.Generator, samples: int, length: int, vocabulary: int) -> Tensor:
    """Return sequences that count upwards from a random token, one token in four replaced."""
    first = torch.randint(vocabulary, (samples, 1), generator=generator)
    counted = (first + torch.arange(length)) % vocabulary
    other = torch.randint(vocabulary, (samples, length), generator=generator)
    replaced = torch.rand(samples, length, generator=generator) < 0.25
    return torch.where(replaced, other, counted)
