"""Loss surfaces of every network of the zoo: each point against a copy with its weights moved."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from tests.zoo.registry import ZOO
from tests.zoo.state import changes, snapshot

import normscope as ns
from normscope.errors import NormscopeWarning
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout


def loss_of(entry, model, batch):
    """The loss of a model as it is, by a separate evaluator."""
    evaluator = Evaluator(
        ns.Problem(model, entry.loss, batch), parameter_layout(model), entry.mode, 0
    )
    number, prepared = next(evaluator.batches())
    return evaluator(prepared, number).loss.item()


@pytest.mark.parametrize("name", ZOO)
def test_surface_agrees_with_moved_copies(name):
    entry = ZOO[name]
    model, batch = entry.build(), entry.batch()
    before = snapshot(model)
    layout = parameter_layout(model)
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(layout.size, generator=generator)
    direction *= 0.02 * sum(p.norm() ** 2 for p in model.parameters()) ** 0.5 / direction.norm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormscopeWarning)
        found = ns.landscape.surface(
            model, entry.loss, batch, [direction], entry.mode, points=3, hessian=False
        )
    assert not changes(before, snapshot(model))
    for step in (-1.0, 0.0, 1.0):
        moved = copy.deepcopy(model)
        parameters = dict(moved.named_parameters())
        with torch.no_grad():
            for part, key in zip(layout.split(direction), layout.names, strict=True):
                parameters[key].add_(part.to(parameters[key].dtype), alpha=step)
        wanted = loss_of(entry, moved, batch)
        assert found.loss.sel(alpha=step).item() == pytest.approx(wanted, rel=entry.tolerance)
