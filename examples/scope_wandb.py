"""What a scope measures in Weights & Biases, without a network: wandb sync sends it later."""

import torch
import wandb

import normscope as ns
from normscope.integrations import LoggedScope
from normscope.integrations.wandb import WandbLogger

x, y = ns.data.load("digits").train
model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scope = ns.Scope(model, "cross_entropy", optimizer, probes="economy", every=5)
with (
    wandb.init(project="normscope", mode="offline") as run,
    LoggedScope(scope, WandbLogger(run)) as logged,
):
    for step, batch in enumerate(torch.randperm(len(x))[:1280].split(64)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        logged.step(x[batch], y[batch])  # before the update
        optimizer.step()
        run.log({"loss": loss.item()}, step=step)  # the training's own
