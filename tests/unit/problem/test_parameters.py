import torch
from torch import nn

from normscope.problem import parameter_layout


def test_split_and_join_are_inverse():
    layout = parameter_layout(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Linear(3, 1)))
    vector = torch.arange(float(layout.size))
    pieces = layout.split(vector)
    assert [piece.shape for piece in pieces] == [(3, 2, 2, 2), (3,), (1, 3), (1,)]
    assert torch.equal(layout.join(pieces), vector)


def test_join_fills_missing_parts_with_zero():
    layout = parameter_layout(nn.Linear(2, 1))
    assert layout.join([None, torch.ones(1)]).tolist() == [0.0, 0.0, 1.0]


def test_dtype_is_the_widest():
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1).double())
    assert parameter_layout(model).dtype == torch.float64
