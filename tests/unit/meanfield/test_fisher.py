"""Random-matrix parts against matrices that are drawn."""

import numpy as np
import pytest

from normscope.meanfield.fisher import extreme_normal, finite_outputs, product_edge


@pytest.mark.parametrize(("size", "width", "layers"), [(200, 400, 1), (100, 300, 3), (150, 600, 6)])
def test_product_edge_is_where_the_spectrum_ends(size, width, layers):
    rng = np.random.default_rng(0)
    tops = []
    for _ in range(4):
        factor = np.eye(size)
        for layer in range(layers):
            rows = size if layer == 0 else width
            factor = factor @ (rng.standard_normal((rows, width)) / np.sqrt(width))
        tops.append(np.linalg.svd(factor, compute_uv=False)[0] ** 2)
    edge = float(product_edge(np.array(layers * size / width), np.array(float(layers))))
    # the top eigenvalue of a finite matrix lies below the edge by this order
    assert np.mean(tops) == pytest.approx(edge, rel=3 * size ** (-2 / 3))


def test_product_edge_without_layers_is_one():
    assert product_edge(np.array([0.0, 0.5]), np.array([0.0, 0.0])).tolist() == [1.0, 1.0]


def test_finite_outputs_give_the_mean_top_eigenvalue_of_a_few():
    rng = np.random.default_rng(1)
    tops = [np.linalg.norm(rng.standard_normal((10, 300)), 2) ** 2 / 300 for _ in range(300)]
    edge = float(product_edge(np.array(finite_outputs(10) / 300), np.array(1.0)))
    assert np.mean(tops) == pytest.approx(edge, rel=0.025)


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_extreme_normal_is_the_mean_of_the_largest(count):
    draws = np.random.default_rng(2).standard_normal((2000, count)).max(1)
    assert extreme_normal(count) == pytest.approx(draws.mean(), abs=0.04)
