"""Properties of a network that explain its limit and its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from normscope.errors import NormscopeError
from normscope.layers.kinds import norm_layers
from normscope.learning_rate.last_layer import last_layer
from normscope.learning_rate.trial_run import gradient_on
from normscope.problem.batch import Batch, copy_batch, first_rows
from normscope.problem.evaluate import Evaluator
from normscope.problem.loss import squared_error
from normscope.problem.outputs import output_tensors
from normscope.problem.parameters import parameter_layout
from normscope.problem.precheck import try_batches
from normscope.problem.problem import Problem
from normscope.problem.recognition import is_cross_entropy, is_squared_error, is_unweighted


def held_norm_layers(model: nn.Module, flags: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the norm layers that use running statistics, which are constants in training.

    Args:
        model: any module.
        flags: the ``training`` flag of every module by name.

    Returns:
        Qualified names.

    >>> net = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    >>> held_norm_layers(net, {"0": False, "1": True, "2": False})
    ('0',)
    """
    found = norm_layers(model).items()
    tracked = (name for name, layer in found if getattr(layer, "running_mean", None) is not None)
    return tuple(name for name in tracked if not flags.get(name, True))


def scale_invariant_weights(
    problem: Problem, batch: Batch, seed: int = 0, mode: str = "train"
) -> tuple[str, ...]:
    """Return the names of the weights that can be doubled without changing the output.

    Each weight is doubled in turn, so that the answer holds for any architecture. A
    weight is invariant if the output changes by at most 0.1 %, which a norm layer's epsilon may
    cause. Weights that are zero, or on which the output does not depend to first order, are not.

    Args:
        problem: model and loss; not changed.
        batch: of which up to 32 samples are used.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        Qualified names of parameters with at least two dimensions.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> data = (torch.randn(16, 3), torch.randn(16, 2))
    >>> scale_invariant_weights(Problem(net, "squared_error", data), data)
    ('0.weight',)
    """
    few = _few_samples(problem, batch, seed, mode)
    layout = parameter_layout(problem.model)
    evaluator = Evaluator(Problem(problem.model, problem.loss, [few]), layout, mode, seed)
    reference, gradient = _response(evaluator, few), gradient_on(evaluator, few)
    found = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        own = evaluator.point[name]
        if len(shape) < 2 or not gradient[layout.slices[name]].any() or not own.any():
            continue
        evaluator.point[name] = own * 2
        try:
            change = (_response(evaluator, few) - reference).norm()
        except NormscopeError:  # not finite: not invariant
            change = torch.tensor(torch.inf)
        evaluator.point[name] = own
        if change <= 1e-3 * reference.norm():
            found.append(name)
    return tuple(found)


def layer_scaled_by_gamma(
    problem: Problem, batch: Batch, seed: int = 0, mode: str = "train"
) -> str | None:
    """Return the last layer, if the gamma of the last norm layer scales its inputs.

    The gamma is doubled: the inputs double if only ReLU, pooling, dropout and the
    like are between the two, without a residual connection around the norm layer and without beta.

    Args:
        problem: model and loss; not changed.
        batch: of which up to 32 samples are used.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        The qualified name of the last layer; None if its inputs do not double, or if there is no
        linear last layer or no trained gamma.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> data = (torch.randn(16, 3), torch.randn(16, 2))
    >>> layer_scaled_by_gamma(Problem(net, "squared_error", data), data)
    '3'
    """
    gamma = next((f"{name}.weight" for name in reversed(norm_layers(problem.model))), None)
    layout = parameter_layout(problem.model)
    if gamma not in layout.names:
        return None
    few = _few_samples(problem, batch, seed, mode)
    evaluator = Evaluator(Problem(problem.model, problem.loss, [few]), layout, mode, seed)
    before = last_layer(evaluator)
    after = last_layer(evaluator, {gamma: 2 * evaluator.point[gamma]})
    if before is None or after is None:
        return None
    doubled = 2 * before.features[0]
    is_scaled = (after.features[0] - doubled).norm() <= 1e-3 * doubled.norm()
    return before.name if is_scaled else None


def _few_samples(problem: Problem, batch: Batch, seed: int, mode: str) -> Batch:
    """Return up to 32 samples, on the model's device; all if the batch cannot be cut."""
    placed = problem.prepare(batch)
    few = first_rows(placed, 32)
    try:
        try_batches(problem, [few], mode, seed)
    except (NormscopeError, RuntimeError, IndexError):  # a model that takes other batches only
        return placed
    return few


def _response(evaluator: Evaluator, batch: Batch) -> Tensor:
    """Return the output's tensors as one; the loss if a `whole_loss` or an object hides them."""
    problem, found = evaluator.problem, []
    leaves = tuple(evaluator.point[name] for name in evaluator.layout.names)
    with evaluator.isolated(leaves), torch.no_grad():
        if problem.has_outputs:
            found = output_tensors(problem.output_on(copy_batch(batch)))
        real = [each.double().flatten() for each in found if each.is_floating_point()]
        return torch.cat(real) if real else problem.loss_on(copy_batch(batch)).double()


def gradient_growth(
    problem: Problem, batch: Batch, seed: int = 0, mode: str = "train"
) -> float | None:
    r"""Return the factor by which the squared gradient grows per layer, backwards.

    .. math:: \left( |\partial L / \partial h_1|^2 / |\partial L / \partial h_{L-1}|^2
        \right)^{1/(L-2)}

    over the outputs h of linear and convolution layers in the order they are called, without the
    last layer, which has another shape. In wide ReLU networks with BatchNorm it approaches
    pi/(pi - 1).

    Reference: yang2019, Section 4.

    Args:
        problem: model and loss; not changed.
        batch: for the gradient.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        The factor; None with fewer than three such layers, or where a gradient is zero.
    """
    placed = problem.prepare(batch)
    evaluator = Evaluator(problem, parameter_layout(problem.model), mode, seed)
    outputs: list[Tensor] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if output.requires_grad:
            outputs.append(output)
            return None
        # of frozen layers, behind which there is no gradient
        outputs.append(output.requires_grad_())
        return output.clone()  # a leaf cannot be overwritten by an in-place activation

    layers = [m for m in problem.model.modules() if isinstance(m, nn.Linear | _ConvNd)]
    with evaluator.isolated(evaluator.leaves()):
        handles = [layer.register_forward_hook(note) for layer in layers]
        try:
            loss = problem.loss_on(placed)
        finally:
            for handle in handles:
                handle.remove()
        if len(outputs) < 3:
            return None
        gradients = torch.autograd.grad(loss, [outputs[0], outputs[-2]], allow_unused=True)
    first, last = (0.0 if g is None else float(g.double().square().sum()) for g in gradients)
    if not first > 0 or not last > 0:
        return None
    return float((first / last) ** (1 / (len(outputs) - 2)))


def constant_output_loss(problem: Problem, batches: Sequence[Batch]) -> float | None:
    r"""Return the loss of the best output that is the same for every sample.

    .. math:: \min_c \frac1m \sum_i L(c, y_i): \quad
        c = \log \bar{y} \text{ (cross-entropy)}, \quad c = \bar{y} \text{ (squared error)}

    with the mean target; for labels the share of each class.

    Args:
        problem: for its loss.
        batches: of its data.

    Returns:
        The loss over all batches; None unless it is the plain mean of the cross-entropy or of the
        squared error (no weights, no smoothing, no sum), of labels or of one vector for each
        sample.

    >>> half = [(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))]
    >>> found = constant_output_loss(Problem(nn.Linear(1, 2), "cross_entropy", half), half)
    >>> round(found, 4)  # log 2
    0.6931
    """
    loss: Any = problem.loss
    if not _is_plain_mean(loss):
        return None
    targets = [problem.target_of(batch) for batch in batches]
    if len({each.shape[1:] for each in targets}) > 1:
        return None
    target, is_entropy = torch.cat(targets), is_cross_entropy(loss)
    # torch's squared error treats integers as numbers, not labels
    vectors = _target_vectors(target, with_labels=is_entropy or loss is squared_error)
    if vectors is None:
        return None
    mean = vectors.mean(0, keepdim=True)
    constant = mean.clamp_min(torch.finfo(mean.dtype).tiny).log() if is_entropy else mean
    with torch.no_grad():
        return float(loss(constant.expand_as(vectors), target))


def _is_plain_mean(loss: Any) -> bool:
    if not (is_cross_entropy(loss) or is_squared_error(loss)):
        return False
    is_mean = getattr(loss, "reduction", "mean") == "mean"
    return is_mean and is_unweighted(loss) and not getattr(loss, "label_smoothing", 0.0)


def _target_vectors(target: Tensor, with_labels: bool) -> Tensor | None:
    """Return targets as one vector for each sample, labels one-hot; None if they are neither."""
    if target.is_floating_point():
        return target if target.dim() == 2 else None
    if not with_labels or target.dim() != 1 or not bool((target >= 0).all()):
        return None
    return functional.one_hot(target.long()).to(torch.get_default_dtype())
