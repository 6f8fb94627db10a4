"""Kernels in plain C for small batches, built on demand where there is a compiler."""
