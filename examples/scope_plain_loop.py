"""What BatchNorm does to the loss landscape along a training: probes in a plain loop."""

import torch

import normscope as ns

x, y = ns.data.load("digits").train
model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with ns.Scope(model, "cross_entropy", optimizer, probes="standard", every=20) as scope:
    for batch in torch.randperm(len(x))[:1280].repeat(4).split(64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        scope.step(x[batch], y[batch])  # before the update
        optimizer.step()
print(scope.results)
scope.plot().savefig("scope.svg")
