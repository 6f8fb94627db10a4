"""Charts: one kind per module, xarray in, matplotlib ``Axes`` or ``Figure`` out; no torch.

Import a chart from its module: ``from normscope.plots.spectrum import spectrum``. The package
itself imports nothing, so that `names` and `edge_of_stability` load without matplotlib.
"""
