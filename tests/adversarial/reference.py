"""Slow independent references for random networks: plain autograd in float64, entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.adversarial.networks import Generator, Sample
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.layers import LpNorm1d


def twin(seed: int) -> Sample:
    """The sample of a seed once more, for a reference to run."""
    return Generator(seed, is_reference=True).sample()


def set_flags(model: nn.Module, mode: str) -> None:
    """Set every module's flag as a mode says."""
    for module in model.modules() if mode in ("train", "eval") else ():
        module.training = mode == "train"


def curvature(seed: int, kind: str, mode: str) -> Tensor:
    """The dense matrix of a kind, combined over the batches as the loss combines them."""
    weights, parts = [], []
    for number in range(len(twin(seed).batches)):
        sample = twin(seed)  # every batch starts from the same buffers
        set_flags(sample.model, mode)
        x, y = sample.batches[number]
        parts.append(_batch_curvature(sample, x, y, kind))
        weights.append(_weight(sample, y) if kind != "fisher" else len(y))
    total = 1.0 if "summed" in sample.parts and kind != "fisher" else sum(weights)
    scaled = [part * (weight / total) for part, weight in zip(parts, weights, strict=True)]
    return torch.stack(scaled).sum(0)


def _weight(sample: Sample, y: Tensor) -> float:
    if "summed" in sample.parts:
        return 1.0
    if "weighted" in sample.parts:
        return float(sample.loss.weight[y].sum())
    return len(y)


@sdpa_kernel(SDPBackend.MATH)  # the fused kernels have no second derivative
def _batch_curvature(sample: Sample, x: Tensor, y: Tensor, kind: str) -> Tensor:
    leaves = [p for p in sample.model.parameters() if p.requires_grad]
    output = sample.model(x)
    if kind == "hessian":
        loss = sample.plain_loss(sample.model, output, y)
        gradient = _join(
            torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
        )
        return torch.stack([_row(entry, leaves) for entry in gradient])
    jacobian = torch.stack([_row(entry, leaves) for entry in output.flatten()])
    if kind == "fisher":
        return jacobian.T @ jacobian / len(x)
    found = torch.autograd.functional.hessian(
        lambda free: sample.plain_loss(sample.model, free, y), output.detach()
    )
    return jacobian.T @ found.reshape(output.numel(), output.numel()) @ jacobian


def _row(entry: Tensor, leaves: list[nn.Parameter]) -> Tensor:
    if not entry.requires_grad:
        return torch.zeros(sum(leaf.numel() for leaf in leaves), dtype=entry.dtype)
    return _join(torch.autograd.grad(entry, leaves, retain_graph=True, materialize_grads=True))


def _join(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def evaluation(seed: int) -> float:
    """The loss over the whole data in eval mode."""
    sample = twin(seed)
    sample.model.eval()
    x, y = (torch.cat(parts) for parts in zip(*sample.batches, strict=True))
    with torch.no_grad():
        return float(sample.plain_loss(sample.model, sample.model(x), y))


def population(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and unbiased variance of each batch norm layer's inputs, over all of its calls."""
    sample = twin(seed)
    sample.model.eval()
    seen: dict[str, list[Tensor]] = {}
    for name, module in sample.model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.training = True
            module.register_forward_pre_hook(_keep(seen.setdefault(name, [])))
        elif isinstance(module, LpNorm1d):
            module.training = True
    with torch.no_grad():
        for x, _ in sample.batches:
            sample.model(x)
    return {name: _moments(inputs) for name, inputs in seen.items()}


def _keep(found: list[Tensor]) -> Callable[..., None]:
    return lambda _, inputs: found.append(inputs[0])


def _moments(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
    samples = torch.tensor([float(len(x)) for x in inputs], dtype=torch.float64)
    shares = (samples / samples.sum())[:, None]
    means = torch.stack([x.mean(axes) for x in inputs])
    variances = torch.stack([x.var(axes) for x in inputs])
    return (shares * means).sum(0), (shares * variances).sum(0)
