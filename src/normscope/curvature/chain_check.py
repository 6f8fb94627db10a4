"""Whether a chain that was read is the model: compared with the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from normscope.curvature.chain_copy import private_copy
from normscope.curvature.chain_read import Scene, links_of
from normscope.curvature.chain_steps import NotAChainError, Step
from normscope.problem.isolation import RandomGenerators

__all__ = ["check_derivatives", "check_values"]

_SAMPLES = 32


def check_values(copy: nn.Module, steps: list[Step], inputs: Tensor, scene: Scene) -> None:
    """Refuse a chain whose output on a few samples is not the model's own.

    Args:
        copy: a private copy of the model.
        steps: what was read.
        inputs: of which a few are taken.
        scene: where the derivatives will be taken.
    """
    few = inputs[:_SAMPLES]
    expected = _output(copy, few)
    _, output = links_of(steps, few, scene)
    _compare(output, expected, float(expected.abs().max()))


def check_derivatives(
    model: nn.Module,
    inputs: Tensor,
    scene: Scene,
    pull_back: Callable[[Tensor, Scene, Tensor], list[Tensor | None]],
) -> None:
    """Refuse a chain whose gradients on a few samples are not the model's own, in float64.

    A forward of the user's own may hold back derivatives (``torch.no_grad``) and none of its
    values shows it.

    Args:
        model: the model.
        inputs: of which a few are taken.
        scene: where the derivatives will be taken.
        pull_back: the chain's gradients in the wanted parameters, sorted by name, for inputs, a
            scene and a cotangent.
    """
    few = inputs[:_SAMPLES].double()
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in scene.tensors.items()
    }
    # constant statistics are no part of the model's own forward: compared as in training
    mode = "train" if scene.mode == "frozen" else scene.mode
    leaves = {name: tensors[name].detach().requires_grad_() for name in sorted(scene.wanted)}
    with torch.enable_grad():
        output = _output(private_copy(model, mode != "eval", tensors | leaves), few)
    if not output.requires_grad:
        raise NotAChainError("its output does not depend on the parameters")
    cotangent = torch.linspace(0.5, 1.5, output.numel()).to(output).view(output.shape)
    expected = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
    found = pull_back(few, replace(scene, mode=mode, tensors=tensors), cotangent)
    scale = max(float(own.abs().max()) for own in expected)
    for gradient, own in zip(found, expected, strict=True):
        _compare(torch.zeros_like(own) if gradient is None else gradient, own, scale)


def _output(copy: nn.Module, few: Tensor) -> Tensor:
    try:
        with RandomGenerators(copy).preserved(0):
            output = copy(few.clone())  # which it may overwrite
    except Exception as error:  # a foreign forward: whatever it raises, the general way shows it
        raise NotAChainError(f"its forward raises {error!r}") from error
    if not isinstance(output, Tensor):
        raise NotAChainError("its output is not a tensor")
    return output


def _compare(found: Tensor, expected: Tensor, scale: float) -> None:
    if found.shape != expected.shape:
        raise NotAChainError("its output has another shape")
    tolerance = torch.finfo(found.dtype).eps ** 0.5
    # written so that a difference that is not a number is refused too
    if not (found - expected).abs().max() <= tolerance * scale:
        raise NotAChainError("its output or gradient is another")
