"""A scope on a Hugging Face Trainer: a small language model made from its configuration."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from normscope.integrations.transformers import ScopeCallback

sizes = {"vocab_size": 17, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
# sequences that count modulo 17, from a random start by a random stride
start, stride = torch.randint(0, 17, (2, 256, 1))
texts = (start + stride * torch.arange(16)) % 17
data = [{"input_ids": text, "labels": text} for text in texts]
scope = ScopeCallback(probes="economy", every=5)
arguments = TrainingArguments(
    "trained", max_steps=20, per_device_train_batch_size=16, learning_rate=1e-2, report_to="none"
)
Trainer(model, arguments, train_dataset=data, callbacks=[scope]).train()
print(scope.results["gradient_norm"].to_dataframe()["gradient_norm"].unstack("layer").T)
scope.plot().savefig("scope.svg")
