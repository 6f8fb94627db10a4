"""Layers with the same values as PyTorch's and a gradient that is cheap to differentiate."""
