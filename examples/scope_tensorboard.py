"""What a scope measures, live in TensorBoard: tensorboard --logdir runs."""

import torch

import normscope as ns
from normscope.integrations import LoggedScope
from normscope.integrations.tensorboard import summary_writer

x, y = ns.data.load("digits").train
model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
probes = ["loss_variation", "gradient_norms", ns.probes.ActivationMoments(units=2, bins=20)]
scope = ns.Scope(model, "cross_entropy", optimizer, probes, every=5)
with summary_writer("runs/batch") as writer, LoggedScope(scope, writer) as logged:
    for batch in torch.randperm(len(x))[:1280].split(64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        logged.step(x[batch], y[batch])  # before the update
        optimizer.step()
