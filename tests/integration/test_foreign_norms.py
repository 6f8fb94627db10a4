"""Norm layers of transformers and timm, as installed."""

import importlib

import pytest
import torch

from normscope.layers import convert, kind_of, norm_layers, plan_conversion
from normscope.layers.detect import positionwise_norm

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]  # their own warnings


def import_module(name):
    try:
        return importlib.import_module(name)
    except (
        ImportError,
        RuntimeError,
    ) as error:  # a torchvision that does not fit torch raises a RuntimeError
        pytest.skip(f"{name} cannot be imported: {error}")


@pytest.mark.parametrize(
    ("module", "name", "kind", "axis"),
    [
        ("transformers.models.llama.modeling_llama", "LlamaRMSNorm", "rms", -1),
        ("transformers.models.t5.modeling_t5", "T5LayerNorm", "rms", -1),
        ("timm.layers.norm", "LayerNorm", "layer", -1),
        ("timm.layers.norm", "LayerNorm2d", "layer", 1),
        ("timm.layers.norm", "RmsNorm", "rms", -1),
        ("timm.layers.norm", "RmsNorm2d", "rms", 1),
        ("timm.layers.norm_act", "LayerNormAct2d", "layer", 1),
    ],
)
def test_layer_is_recognized(module, name, kind, axis):
    found = positionwise_norm(getattr(import_module(module), name)(12))
    assert (found.kind, found.feature_axis) == (kind, axis)


def language_model(name):
    import_module(f"transformers.models.{name}.modeling_{name}")
    transformers = import_module("transformers")
    sizes = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=16, **sizes)
        return transformers.GPT2LMHeadModel(config).eval()
    options = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    config = transformers.LlamaConfig(intermediate_size=32, **options, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(("name", "own"), [("gpt2", "layer"), ("llama", "rms")])
@pytest.mark.parametrize("to", ["none", "batch", "layer", "rms", "dyt", "group"])
def test_language_model_is_converted_there_and_back(name, own, to):
    torch.manual_seed(0)
    model = language_model(name)
    tokens = torch.randint(50, (2, 7))
    converted = convert(model, to)
    kinds = [kind_of(layer) for layer in norm_layers(converted).values()]
    assert kinds == [to] * (5 if to != "none" else 0)
    logits = converted(input_ids=tokens).logits
    assert logits.isfinite().all()
    back = convert(converted, own)
    if to != "dyt":  # has no eps
        torch.testing.assert_close(back(input_ids=tokens).logits, model(input_ids=tokens).logits)
    assert plan_conversion(model, own) == []
