"""Loss surfaces without and with BatchNorm, by the batch's and by running statistics."""

import normscope as ns
from normscope.plots.surface import surfaces

data = ns.data.load("digits").train
batch, found = tuple(part[:512] for part in data), {}
for norm, mode in (("none", "train"), ("batch", "train"), ("batch", "eval")):
    model = ns.models.build("fully_connected", norm=norm, input_shape=(1, 8, 8), width=30)
    ns.fit(ns.Problem(model, "cross_entropy", data), ns.sgd(0.03), steps=120, batch_size=64)
    surface = ns.landscape.surface(model, "cross_entropy", batch, mode=mode, points=21)
    print(f"{norm}, {mode} mode: {surface}\n")
    found[f"{norm}, {mode} mode"] = surface.dataset
surfaces(found).savefig("surfaces.svg")
