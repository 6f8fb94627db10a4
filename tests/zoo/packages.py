"""Networks of torchvision, timm, transformers and torch_geometric, with random weights.

Packages are imported when a model is built: the names are known without them.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.zoo.convolutional import PlainHardsigmoid, PlainHardswish
from tests.zoo.entry import CLASSES, Entry, images, tokens
from tests.zoo.language import causal_loss, masked_loss
from tests.zoo.registry import (
    CLASSIFIER,
    googlenet_loss,
    googlenet_tensors,
    graph_batch,
    loss_of_output,
    loss_of_target,
)
from torch import Tensor, nn
from torch.nn import functional

PACKAGES: dict[str, Entry] = {}
"""The entries by name; the first word is the package."""

SIDE = 32
LARGE_SIDE = 48  # of networks that reduce the side 32 times: batch statistics need values
VOCABULARY, LENGTH = 17, 6


def load(name: str) -> Any:
    """Import a package or one of its modules.

    A torchvision built for CUDA cannot load its compiled operators beside a torch without CUDA, and
    its import then fails on the two that it registers unasked. The networks here use none of them,
    so these two are declared.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of others, about others
        if name.startswith(("torchvision", "timm", "transformers")):  # which all import it
            _declare_missing_operators()
        return importlib.import_module(name)


def _declare_missing_operators() -> None:
    if _DECLARED or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        _DECLARED.append(library)


_DECLARED: list[torch.library.Library] = []


def _add(name: str, make: Callable[[], nn.Module], **options: Any) -> None:
    PACKAGES[name] = Entry(name, make, **options)


def images_of_side(side: int) -> Callable[[torch.Generator, int], tuple[Tensor, Tensor]]:
    """Return what draws the images of the zoo, enlarged, with fresh noise on every pixel."""

    def draw(generator: torch.Generator, samples: int) -> tuple[Tensor, Tensor]:
        x, labels = images(generator, samples)
        noise = torch.randn(samples, 3, side, side, generator=generator)
        return functional.interpolate(x, (side, side), mode="nearest") + 0.5 * noise, labels

    return draw


def without_dropout(model: nn.Module) -> nn.Module:
    """Return the model with dropout and stochastic depth off: each dtype draws other masks."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d) or type(module).__name__ in (
            "StochasticDepth",
            "DropPath",
        ):
            for rate in ("p", "drop_prob"):
                if hasattr(module, rate):
                    setattr(module, rate, 0.0)
    return model


def with_plain_activations(model: nn.Module) -> nn.Module:
    """Return the model with hardswish and hardsigmoid in operations that torch derives twice."""
    plain = {nn.Hardswish: PlainHardswish, nn.Hardsigmoid: PlainHardsigmoid}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) in plain:
                setattr(module, name, plain[type(child)]())
    return model


CLASSIFIER_32 = CLASSIFIER | {
    "draw": images_of_side(SIDE),
    "input_shape": (3, SIDE, SIDE),
    "samples": 4,
    "tolerance": 1e-3,
}
CLASSIFIER_48 = CLASSIFIER_32 | {
    "draw": images_of_side(LARGE_SIDE),
    "input_shape": (3, LARGE_SIDE, LARGE_SIDE),
    "samples": 6,
}


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        models = load("torchvision.models")
        return without_dropout(getattr(models, name)(num_classes=CLASSES, **options))

    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made = load("timm").create_model(name, num_classes=CLASSES, **options)
        return without_dropout(made).train()

    return make


_add("torchvision resnet18", _torchvision("resnet18"), layer="layer2.0.bn1", **CLASSIFIER_48)
_add(
    "torchvision googlenet",
    _torchvision("googlenet", aux_logits=True, init_weights=False),
    layer="inception3a.branch1.bn",
    tensors=googlenet_tensors,
    **CLASSIFIER_48
    | {
        "loss": loss_of_output(googlenet_loss, googlenet_tensors),
        "plain_loss": loss_of_target(googlenet_loss),
    },
)
_mobilenet = _torchvision("mobilenet_v3_small", width_mult=0.5)
_add(
    "torchvision mobilenet_v3_small",
    _mobilenet,
    make_plain=lambda: with_plain_activations(_mobilenet()),
    layer="features.0.1",
    **CLASSIFIER_48,
)
_add(
    "torchvision shufflenet_v2_x0_5",
    _torchvision("shufflenet_v2_x0_5"),
    layer="conv1.1",
    **CLASSIFIER_48,
)
_add(
    "torchvision DenseNet",
    _torchvision("DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16),
    layer="features.norm0",
    **CLASSIFIER_32,
)
_add(
    "torchvision SwinTransformer",
    _torchvision(
        "SwinTransformer",
        patch_size=[2, 2],
        embed_dim=12,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        stochastic_depth_prob=0.0,
    ),
    convert_to="rms",
    **CLASSIFIER_32,
)
_add("timm test_resnet", _timm("test_resnet"), layer="layer1.0.bn1", **CLASSIFIER_48)
_add("timm test_efficientnet", _timm("test_efficientnet"), layer="bn1", **CLASSIFIER_48)
_add("timm test_nfnet", _timm("test_nfnet"), **CLASSIFIER_48)
_add("timm convnext_atto", _timm("convnext_atto"), convert_to="rms", **CLASSIFIER_32)
_add(
    "timm vit_tiny",
    _timm("vit_tiny_patch16_224", img_size=SIDE, patch_size=8, depth=2),
    convert_to="rms",
    **CLASSIFIER_32,
)
_add(
    "timm swin_tiny",
    _timm(
        "swin_tiny_patch4_window7_224",
        img_size=SIDE,
        window_size=4,
        embed_dim=12,
        depths=(2, 2),
        num_heads=(2, 4),
    ),
    convert_to="rms",
    **CLASSIFIER_32,
)


def causal_batch(generator: torch.Generator, samples: int) -> dict[str, Tensor]:
    """Sequences that are their own labels, with a mask."""
    ids = tokens(generator, samples, LENGTH, VOCABULARY)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def masked_batch(generator: torch.Generator, samples: int) -> dict[str, Tensor]:
    """Sequences of which two positions have a label."""
    batch = causal_batch(generator, samples)
    unlabelled = torch.ones(LENGTH, dtype=torch.bool)
    unlabelled[[1, 3]] = False
    batch["labels"][:, unlabelled] = -100
    return batch


def class_batch(generator: torch.Generator, samples: int) -> dict[str, Tensor]:
    """Sequences with one label each."""
    batch = causal_batch(generator, samples)
    return batch | {"labels": batch["input_ids"][:, -1] % CLASSES}


def _transformers(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        library = load("transformers")
        settings = getattr(library, config)(vocab_size=VOCABULARY, **options)
        settings.use_cache = False
        return getattr(library, model)(settings).train()

    return make


LANGUAGE: dict[str, Any] = {
    "loss": "model",
    "draw": causal_batch,
    "plain_loss": loss_of_target(causal_loss),
    "tensors": lambda output: (output.logits,),
    "samples": 3,
    "convert_to": "rms",
    "tolerance": 1e-3,
    "loss_precision": 2**-23,  # transformers computes the loss of language models in float32
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}

_add(
    "transformers GPT2LMHeadModel",
    _transformers(
        "GPT2LMHeadModel",
        "GPT2Config",
        n_positions=8,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    ),
    **LANGUAGE,
)
_add(
    "transformers LlamaForCausalLM",
    _transformers(
        "LlamaForCausalLM",
        "LlamaConfig",
        intermediate_size=24,
        num_key_value_heads=1,
        max_position_embeddings=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **SMALL,
    ),
    **LANGUAGE | {"convert_to": "layer"},
)
_add(
    "transformers BertForMaskedLM",
    _transformers(
        "BertForMaskedLM",
        "BertConfig",
        intermediate_size=32,
        max_position_embeddings=8,
        **SMALL,
        **NO_DROPOUT,
    ),
    **LANGUAGE | {"draw": masked_batch, "plain_loss": loss_of_target(masked_loss)},
)
_add(
    "transformers BertForSequenceClassification",
    _transformers(
        "BertForSequenceClassification",
        "BertConfig",
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=CLASSES,
        **SMALL,
        **NO_DROPOUT,
    ),
    **LANGUAGE | {"draw": class_batch, "plain_loss": loss_of_target(functional.cross_entropy)},
)


class NodeClassifier(nn.Module):
    """A graph network called with a graph, as its users write it."""

    def __init__(self, convolutions: nn.Module) -> None:
        super().__init__()
        self.convolutions = convolutions

    def forward(self, data: Any) -> Tensor:
        return self.convolutions(data.x, data.edge_index)


class GraphClassifier(NodeClassifier):
    """One prediction for each graph of a batch."""

    def forward(self, data: Any) -> Tensor:
        pool = load("torch_geometric.nn").global_add_pool
        return pool(self.convolutions(data.x, data.edge_index), data.batch)


def _geometric(name: str, wrapper: type, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        networks = load("torch_geometric.nn")
        sizes = {"in_channels": 6, "hidden_channels": 16, "num_layers": 2, "out_channels": CLASSES}
        return wrapper(getattr(networks, name)(**sizes, **options))

    return make


def nodes_batch(generator: torch.Generator, samples: int) -> Any:
    """A graph with a label for each node."""
    features, edges, labels = graph_batch(generator, samples)
    return load("torch_geometric.data").Data(x=features, edge_index=edges, y=labels)


def graphs_batch(generator: torch.Generator, samples: int) -> Any:
    """Several small graphs with a label each."""
    data = load("torch_geometric.data")
    graphs = []
    for _ in range(samples):
        features, edges, labels = graph_batch(generator, 5)
        graphs.append(data.Data(x=features, edge_index=edges, y=labels[:1]))
    return data.Batch.from_data_list(graphs)


GRAPH: dict[str, Any] = {"loss": "cross_entropy", "plain_loss": CLASSIFIER["plain_loss"]}
_add(
    "torch_geometric GCN", _geometric("GCN", NodeClassifier), draw=nodes_batch, samples=12, **GRAPH
)
_add(
    "torch_geometric GIN",
    _geometric("GIN", GraphClassifier, norm="batch_norm"),
    draw=graphs_batch,
    layer="convolutions.norms.0.module",
    **GRAPH,
)


def package_of(entry: Entry) -> str:
    """Return the package that an entry needs."""
    return entry.name.split()[0]
