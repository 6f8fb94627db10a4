"""The zoo: 28 networks that people train, in small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.zoo import convolutional, generative, language, structured
from tests.zoo import tokens as patches
from tests.zoo.entry import CLASSES, IMAGE, Entry, images, target_of, tokens
from torch import Tensor, nn
from torch.nn import functional

ZOO: dict[str, Entry] = {}
"""The entries by name."""


def _add(name: str, make: Callable[[], nn.Module], **options: Any) -> None:
    ZOO[name] = Entry(name, make, **options)


def loss_of_target(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``plain(*tensors, target)`` as a function of the tensors and the batch."""
    return lambda *arguments: plain(*arguments[:-1], target_of(arguments[-1]))


def loss_of_output(
    plain: Callable[..., Tensor], tensors: Callable[[Any], tuple[Tensor, ...]]
) -> Callable[[Any, Any], Tensor]:
    """Return ``loss(output, target)`` for a loss of several tensors of the output."""

    def loss(output: Any, target: Any) -> Tensor:
        return plain(*tensors(output), target)

    return loss


CLASSIFIER: dict[str, Any] = {
    "draw": images,
    "loss": "cross_entropy",
    "plain_loss": loss_of_target(functional.cross_entropy),
    "input_shape": IMAGE,
}


def googlenet_loss(logits: Tensor, *rest: Tensor) -> Tensor:
    """Cross-entropy, in train mode with those of the auxiliary heads."""
    *auxiliary, labels = rest
    total = functional.cross_entropy(logits, labels)
    return total + 0.3 * sum(functional.cross_entropy(each, labels) for each in auxiliary)


def googlenet_tensors(output: Any) -> tuple[Tensor, ...]:
    """Return the scores: three tensors in train mode, one in eval mode."""
    return tuple(output) if isinstance(output, tuple) else (output,)


_add("ResNet-18", convolutional.ResNet18, layer="layer2.0.bn1", **CLASSIFIER)
_add(
    "GoogLeNet",
    convolutional.GoogLeNet,
    layer="inception4.branch1.1",
    tensors=googlenet_tensors,
    **CLASSIFIER
    | {
        "loss": loss_of_output(googlenet_loss, googlenet_tensors),
        "plain_loss": loss_of_target(googlenet_loss),
    },
)
_add(
    "MobileNetV3",
    convolutional.MobileNetV3,
    make_plain=lambda: convolutional.MobileNetV3(
        convolutional.PlainHardswish, convolutional.PlainHardsigmoid
    ),
    layer="features.1",
    **CLASSIFIER,
)
_add("EfficientNet", convolutional.EfficientNet, layer="features.1", **CLASSIFIER)
_add("ShuffleNet", convolutional.ShuffleNet, layer="conv1.1", **CLASSIFIER)
_add("DenseNet", convolutional.DenseNet, layer="features.1.norm2", **CLASSIFIER)
_add("ConvNeXt", patches.ConvNeXt, convert_to="rms", **CLASSIFIER)
_add("NFNet", patches.NFNet, **CLASSIFIER)
_add("ViT", patches.ViT, convert_to="rms", **CLASSIFIER)
_add("Swin", patches.Swin, convert_to="rms", **CLASSIFIER)
_add(
    "MLP-Mixer",
    lambda: patches.PatchNetwork(patches.MixerBlock, nn.LayerNorm),
    convert_to="rms",
    **CLASSIFIER,
)
_add("ResMLP", lambda: patches.PatchNetwork(patches.ResMLPBlock, patches.Affine), **CLASSIFIER)


def causal_batch(generator: torch.Generator, samples: int) -> dict[str, Tensor]:
    """Sequences that are their own labels; the model shifts them."""
    ids = tokens(generator, samples, language.LENGTH, language.VOCABULARY)
    return {"input_ids": ids, "labels": ids.clone()}


def masked_batch(generator: torch.Generator, samples: int) -> dict[str, Tensor]:
    """Sequences with two masked positions (token 0), the last of odd ones padded."""
    ids = 1 + tokens(generator, samples, language.LENGTH, language.VOCABULARY - 1)
    labels = torch.full_like(ids, -100)
    for position in (1, 3):
        labels[:, position] = ids[:, position]
    masked = torch.where(labels == -100, ids, 0)
    present = torch.ones_like(ids)
    present[1::2, -1] = 0
    return {"input_ids": masked, "attention_mask": present, "labels": labels}


def token_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
    """Sequences, labelled by the class of the last token."""
    ids = tokens(generator, samples, language.LENGTH, language.VOCABULARY)
    return ids, ids[:, -1] % CLASSES


LANGUAGE: dict[str, Any] = {
    "loss": "model",
    "plain_loss": loss_of_target(language.causal_loss),
    "tensors": lambda output: (output.logits,),
    "samples": 3,
    "convert_to": "rms",
}

_add("GPT-2", language.GPT2, draw=causal_batch, **LANGUAGE)
_add("Llama", language.Llama, draw=causal_batch, **LANGUAGE | {"convert_to": "layer"})
_add(
    "BERT",
    language.Bert,
    draw=masked_batch,
    **LANGUAGE | {"plain_loss": loss_of_target(language.masked_loss)},
)
_add(
    "LSTM",
    lambda: language.LSTMClassifier(CLASSES),
    draw=token_batch,
    loss="cross_entropy",
    plain_loss=CLASSIFIER["plain_loss"],
)


def squares(generator: torch.Generator, samples: int) -> Tensor:
    """Images of one channel, 8x8: a bright square on noise."""
    image = 0.1 * torch.rand(samples, 1, 8, 8, generator=generator)
    corner = torch.randint(4, (samples, 2), generator=generator)
    for sample, (row, column) in enumerate(corner.tolist()):
        image[sample, 0, row : row + 4, column : column + 4] += 0.8
    return image


def reconstruction_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
    """Images that are their own targets."""
    image = squares(generator, samples)
    return image, image


def diffusion_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy images, times in [0, 1], and the noise."""
    image, noise = squares(generator, samples), torch.randn(samples, 1, 8, 8, generator=generator)
    time = torch.rand(samples, generator=generator)
    angle = time.view(-1, 1, 1, 1) * torch.pi / 2
    return angle.cos() * image + angle.sin() * noise, time, noise


def discriminator_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
    """Images of the data, labelled 1, and noise, labelled 0."""
    real = torch.arange(samples) % 2
    image, _ = images(generator, samples)
    noise = torch.randn(samples, *IMAGE, generator=generator)
    mixed = torch.where(real.view(-1, 1, 1, 1) == 1, image, noise)
    return mixed, real[:, None].float()


def half_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance per sample."""
    return (output - target).square().sum() / (2 * len(output))


def sequence_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
    """Waves of two channels, labelled by their frequency."""
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    phase = torch.arange(12) * 0.3 * (1 + labels[:, None])
    wave = torch.stack([phase.sin(), phase.cos()], dim=1)
    return wave + 0.2 * torch.randn(wave.shape, generator=generator), labels


_add(
    "VAE",
    generative.VAE,
    draw=reconstruction_batch,
    loss=loss_of_output(generative.vae_loss, tuple),
    plain_loss=loss_of_target(generative.vae_loss),
    tensors=tuple,
    samples=3,
)
_add(
    "diffusion UNet",
    generative.DiffusionUNet,
    draw=diffusion_batch,
    loss=nn.MSELoss(),
    plain_loss=loss_of_target(functional.mse_loss),
    samples=2,
)
_add(
    "spectral-norm discriminator",
    generative.discriminator,
    draw=discriminator_batch,
    loss=nn.BCEWithLogitsLoss(),
    plain_loss=loss_of_target(functional.binary_cross_entropy_with_logits),
    input_shape=IMAGE,
)
_add(
    "weight-norm TCN",
    lambda: generative.TemporalNetwork(CLASSES),
    draw=sequence_batch,
    loss=nn.CrossEntropyLoss(label_smoothing=0.1),
    plain_loss=loss_of_target(
        lambda scores, labels: functional.cross_entropy(scores, labels, label_smoothing=0.1)
    ),
    make_plain=lambda: generative.TemporalNetwork(CLASSES, generative.plain_weight_norm),
    input_shape=(2, 12),
)
_add(
    "l1-norm autoencoder",
    generative.l1_autoencoder,
    draw=reconstruction_batch,
    loss="squared_error",
    plain_loss=loss_of_target(half_squared_error),
    samples=4,
    convert_to="batch",
    input_shape=(1, 8, 8),
)


def graph_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """A ring of nodes with chords: features, edges in both directions, labels."""
    ring = torch.arange(samples)
    chords = torch.randint(samples, (2, samples), generator=generator)
    edges = torch.cat([torch.stack([ring, (ring + 1) % samples]), chords], dim=1)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    features = torch.randn(samples, 6, generator=generator)
    features[:, :CLASSES] += functional.one_hot(labels, CLASSES)
    return features, torch.cat([edges, edges.flip(0)], dim=1), labels


def two_inputs_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, table rows, and a number that depends on both."""
    image, labels = images(generator, samples)
    table = torch.randn(samples, 5, generator=generator)
    return image, table, (labels + table.sum(1))[:, None] / CLASSES


def pair_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of images, and whether they show the same."""
    (first, one), (second, other) = images(generator, samples), images(generator, samples)
    return first, second, (one == other).float()


def segmentation_batch(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
    """Images of a square, and the label of every pixel."""
    image = squares(generator, samples)
    return image, (image[:, 0] > 0.5).long()


_add(
    "GNN",
    structured.GraphNetwork,
    draw=graph_batch,
    loss="cross_entropy",
    plain_loss=CLASSIFIER["plain_loss"],
    samples=12,
    layer="conv1.mlp.1",
)
_add(
    "two inputs",
    structured.TwoInputs,
    draw=two_inputs_batch,
    loss=nn.MSELoss(),
    plain_loss=loss_of_target(functional.mse_loss),
    layer="image.1",
)
_add(
    "Siamese",
    structured.Siamese,
    draw=pair_batch,
    loss=loss_of_output(structured.contrastive_loss, tuple),
    plain_loss=loss_of_target(structured.contrastive_loss),
    tensors=tuple,
    layer="encoder.1",
)
_add(
    "segmentation",
    structured.SegmentationNet,
    draw=segmentation_batch,
    loss=loss_of_output(structured.segmentation_loss, lambda out: (out["out"], out["aux"])),
    plain_loss=loss_of_target(structured.segmentation_loss),
    tensors=lambda output: (output["out"], output["aux"]),
    samples=2,
    layer="early.1",
)
_add("frozen backbone", structured.frozen_backbone, mode="as_is", layer="head.1", **CLASSIFIER)
_add("bfloat16", structured.bfloat16_network, layer="1", tolerance=0.1, **CLASSIFIER)
_add("compiled", structured.compiled_network, layer="_orig_mod.1", **CLASSIFIER)
