"""Experiments of yang2019: gradient explosion in deep batch-normalized networks."""
