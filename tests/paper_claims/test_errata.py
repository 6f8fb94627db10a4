"""Misprints of the mean-field paper, and that every test the errata page names is there."""

import ast
import re
from pathlib import Path

import pytest
import torch

from normscope.data import gaussian_inputs
from normscope.meanfield import fully_connected_specification, predict
from normscope.models import build

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
TABLE_ROW = re.compile(r"^\| (?!source|---)", re.MULTILINE)


def errata():
    return (ROOT / "docs" / "research" / "errata.md").read_text(encoding="utf-8")


def functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_errata_name_exists():
    named = NAMED.findall(errata())
    assert len(named) > 30
    missing = [f"{path}::{name}" for path, name in named if name not in functions(path)]
    assert not missing


def test_every_row_of_the_errata_names_a_test():
    rows = [line for line in errata().splitlines() if TABLE_ROW.match(line)]
    assert len(rows) > 30
    assert [row[:60] for row in rows if not NAMED.search(row)] == []


def test_base_case_is_one_and_zero():
    """Data of mean 0 and variance 1: the printed 0 and 1 would make the variance negative."""
    x = gaussian_inputs((4000,), 20, 0).double()
    gram = x @ x.T / 4000
    own, pair = gram.diagonal().mean(), (gram.sum() - gram.trace()) / (20 * 19)
    assert float(own) == pytest.approx(1, abs=0.02)
    assert float(pair) == pytest.approx(0, abs=0.02)
    first = predict(fully_connected_specification(), closure="printed").layers[0]
    assert (first.input_second_moment, first.input_pair) == (1, 0)


def test_gaussian_model_needs_a_minus_sign():
    """With p ~ exp(-|f - y|^2 / 2) the mean outer product of scores is that of the gradients."""
    generator = torch.Generator().manual_seed(0)
    jacobian = torch.randn(3, 4, generator=generator, dtype=torch.float64)  # of f by the parameters
    noise = torch.randn(200_000, 3, generator=generator, dtype=torch.float64)
    scores = noise @ jacobian  # gradients of -|f - y|^2 / 2 at y = f + noise, up to the sign
    torch.testing.assert_close(
        scores.T @ scores / len(noise), jacobian.T @ jacobian, rtol=0.02, atol=0.03
    )


@pytest.mark.parametrize("sigma_w2", [0.5, 8.0])
def test_moments_after_normalization_have_no_weight_variance(sigma_w2):
    """gamma^2 / 2 for ReLU, whatever the weights' variance."""
    network = build(
        "fully_connected",
        input_shape=(300,),
        width=2000,
        depth=3,
        gamma=1.5,
        sigma_w2=sigma_w2,
        norm_options={"eps": 1e-12},
    )
    with torch.no_grad():
        after = network.features[:3](gaussian_inputs((300,), 64, 0))
    assert float(after.square().mean()) == pytest.approx(1.5**2 / 2, rel=0.02)


def test_networks_without_normalization_have_no_gamma():
    """The axis of Figure 3 can only be the weights' variance."""
    inputs = gaussian_inputs((50,), 8, 0)
    options = {"norm": "none", "input_shape": (50,), "width": 20}
    with torch.no_grad():
        outputs = [build("fully_connected", gamma=g, **options)(inputs) for g in (1.0, 3.0)]
        other = build("fully_connected", sigma_w2=3.0, **options)(inputs)
    assert torch.equal(*outputs)
    assert not torch.allclose(other, outputs[0])
