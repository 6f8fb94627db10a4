import torch

from normscope.curvature import spaces as module
from normscope.curvature.spaces import ImageCache


def basis(count=3, size=6):
    drawn = torch.randn(size, count, generator=torch.Generator().manual_seed(0)).double()
    return torch.linalg.qr(drawn)[0].T


def remembered(vectors, matrix):
    cache = ImageCache()
    for vector in vectors:
        cache.add(vector, matrix @ vector)
    return cache


def test_image_of_a_combination_is_that_of_the_map():
    vectors, matrix = basis(), torch.randn(4, 6, dtype=torch.float64)
    combined = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64) @ vectors
    torch.testing.assert_close(remembered(vectors, matrix).image(combined), matrix @ combined)


def test_vector_outside_has_no_image():
    vectors, matrix = basis(4), torch.randn(4, 6, dtype=torch.float64)
    cache = remembered(vectors[:3], matrix)
    assert cache.image(vectors[0] + 1e-9 * vectors[3]) is None
    assert cache.image(vectors[0]) is not None


def test_vectors_that_are_not_orthonormal_are_not_mapped_wrongly():
    vectors = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    cache = remembered(vectors, torch.eye(2))
    assert cache.image(torch.tensor([0.0, 1.0])) is None


def test_changing_a_vector_later_does_not_change_the_memory():
    vector = torch.tensor([1.0, 0.0])
    cache = ImageCache()
    cache.add(vector, torch.tensor([5.0]))
    vector.zero_()
    assert cache.image(torch.tensor([1.0, 0.0])).item() == 5


def test_memory_has_an_end(monkeypatch):
    monkeypatch.setattr(module, "_MOST_IMAGES", 2)
    vectors = basis()
    cache = remembered(vectors, torch.eye(6, dtype=torch.float64))
    assert cache.image(vectors[2]) is None
    monkeypatch.setattr(module, "_LARGEST_IMAGE", 8)
    assert remembered(vectors, torch.eye(6, dtype=torch.float64)).image(vectors[0]) is None


def test_unknown_image_is_not_remembered():
    cache = ImageCache()
    cache.add(torch.tensor([1.0]), None)
    assert cache.image(torch.tensor([1.0])) is None
