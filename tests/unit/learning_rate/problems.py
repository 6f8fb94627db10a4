"""Problems whose largest stable learning rate is known."""

import torch
from torch import nn

from normscope.problem import Problem


def quadratic(eigenvalues=(4.0, 0.01), shares=(0.01, 1.0)):
    """Linear regression from zero weights whose Hessian is diagonal, with these eigenvalues.

    ``shares`` are the squared distances to the minimum, each times its eigenvalue: what each
    direction adds to the first loss. A steep direction with a small share keeps the harmless
    first swings of momentum below the limit.
    """
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    size = len(values)
    inputs = torch.diag((size * values).sqrt())
    distance = (torch.tensor(shares, dtype=torch.float64) / values).sqrt()
    model = nn.Linear(size, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    return Problem(model, "squared_error", (inputs, inputs @ distance.unsqueeze(1)))


def small_network(norm=True, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def labelled(samples=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 5, generator=generator)
    return inputs, torch.randint(3, (samples,), generator=generator)


def mortal():
    """Two units in a row with a ReLU between; a step too large silences it for every sample.

    The outputs are wanted lower by 0.9 than they begin: a line without a kink does it.
    """
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), (1.0, 0.0, 1.0, 0.0), strict=True):
            parameter.fill_(value)
    batches = [torch.tensor([[0.5], [0.7]]), torch.tensor([[1.5], [1.3]])]
    return Problem(model, "squared_error", [(inputs, inputs - 0.9) for inputs in batches])


def plateau(weight=0.3, depth=4, slope=4.0):
    """A chain of small weights with a bias at its end; the outputs are wanted ``slope`` times x.

    The loss is flat in all directions but the bias, whose curvature is one and whose gradient is
    zero, until the weights have grown. Gradient descent on their product takes tens of steps.
    """
    layers = [nn.Linear(1, 1, bias=place == depth - 1) for place in range(depth)]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(weight)
        layers[-1].bias.zero_()
    inputs = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]], dtype=torch.float64)
    return Problem(model, "squared_error", (inputs, slope * inputs))
