"""Small networks with structured inputs and outputs, and dense matrices built independently."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call, grad, jacrev
from torch.nn import functional


@dataclass
class Output:
    """Like the outputs of Hugging Face: a loss if there were labels, scores, and hidden states."""

    loss: torch.Tensor | None
    logits: torch.Tensor
    hidden: tuple


class Coded(NamedTuple):
    recon: torch.Tensor
    mean: torch.Tensor
    log_variance: torch.Tensor


class Vae(nn.Module):
    """Returns (recon, mean, log variance); the first is computed from the others."""

    def __init__(self, make=Coded):
        super().__init__()
        self.code, self.decode, self.make = nn.Linear(4, 4), nn.Linear(2, 4), make

    def forward(self, x):
        mean, log_variance = self.code(x).chunk(2, dim=1)
        noise = torch.linspace(-1, 1, 2, dtype=x.dtype)
        sample = mean + noise * (0.5 * log_variance).exp()
        return self.make(torch.tanh(self.decode(sample)), mean, log_variance)


def vae_loss(output, target):
    recon, mean, log_variance = output
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return (0.5 * (recon - target).square().sum(1) + kl).mean()


class ThreeHeads(nn.Module):
    """Like GoogLeNet in train mode: a main and two auxiliary classifiers, as a tuple."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Linear(4, 3), nn.Linear(3, 3)
        self.heads = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        stem = torch.tanh(self.stem(x))
        body = torch.tanh(self.body(stem))
        return [head(each) for head, each in zip(self.heads, (body, stem, stem), strict=True)]


def heads_loss(output, target):
    losses = [functional.cross_entropy(each, target) for each in output]
    return losses[0] + 0.3 * losses[1] + 0.3 * losses[2]


class Segmentation(nn.Module):
    """Like torchvision's: {"out", "aux", "features"} over positions, the last not in the loss."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)
        self.out, self.aux = nn.Conv1d(3, 2, 1), nn.Conv1d(3, 2, 1)

    def forward(self, x):
        features = torch.tanh(self.norm(self.stem(x)))
        return {"out": self.out(features), "aux": self.aux(features), "features": features}


def segmentation_loss(output, target):
    return functional.cross_entropy(output["out"], target) + 0.5 * functional.cross_entropy(
        output["aux"], target
    )


class LossInside(nn.Module):
    """Computes its own loss, like a model of Hugging Face, on named tokens and labels."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(5, 3), nn.Linear(3, 3)
        self.head = nn.Linear(3, 5)

    def forward(self, tokens, labels=None, mask=None):
        embedded = self.embed(tokens)
        hidden = torch.tanh(self.mix(embedded.cumsum(1)))
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss, logits, (embedded, hidden))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left, right):
        return torch.tanh(self.left(left)) * self.right(right)


class Graph(nn.Module):
    """Two rounds of sums over the edges; one row of output for each node."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x, edges):
        source, target = edges
        x = torch.tanh(self.first(x))
        x = x.index_add(0, target, x[source])
        return self.second(x)


class GraphOfData(Graph):
    """The same, called with an object of nodes and edges, as torch_geometric's are."""

    def forward(self, data):
        return super().forward(data.x, data.edge_index)


class StandIn:
    """The part of torch_geometric's Data that is used here."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def apply(self, function):
        for name, part in vars(self).items():
            setattr(self, name, function(part))
        return self


# as torch_geometric.data.Data is recognized
StandIn.__module__ = "torch_geometric.data.data"


def make(kind, *arguments, seed=0):
    torch.manual_seed(seed)
    return kind(*arguments).double()


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(count, *shape, seed=2):
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 4], [1, 2, 3, 4, 0, 2]])


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def at(model, vector, *arguments, **named):
    """The output of a model at other parameters, given as one vector."""
    parameters, start = {}, 0
    for name, parameter in model.named_parameters():
        size = parameter.numel()
        parameters[name] = vector[start : start + size].view_as(parameter)
        start += size
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return functional_call(model, parameters | buffers, arguments, named)


def hessian(function):
    """The Hessian, by reverse mode twice."""
    return jacrev(grad(function))


def dense_matrices(model, outputs_at, loss_of, samples):
    """Fisher, Gauss-Newton and Hessian matrix, by torch.func.

    Args:
        model: whose parameters are differentiated by.
        outputs_at: function of a flat vector; the list of tensors that the loss depends on.
        loss_of: function of that list.
        samples: in the batch.
    """
    point = flat(model)
    shapes = [each.shape for each in outputs_at(point)]

    def flat_outputs(vector):
        return torch.cat([each.flatten() for each in outputs_at(vector)])

    def flat_loss(values):
        sizes = [shape.numel() for shape in shapes]
        parts = zip(values.split(sizes), shapes, strict=True)
        return loss_of([part.view(shape) for part, shape in parts])

    jacobian = jacrev(flat_outputs)(point)
    metric = hessian(flat_loss)(flat_outputs(point).detach())
    return {
        "fisher": jacobian.T @ jacobian / samples,
        "ggn": jacobian.T @ metric @ jacobian,
        "hessian": hessian(lambda vector: flat_loss(flat_outputs(vector)))(point),
    }
