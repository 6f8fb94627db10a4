"""Layers under torch.compile, export, tracing, copying, pickling and reparametrization."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import func, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from normscope.layers import BatchNorm1d, BatchNorm2d

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def _images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Loading inductor makes PyTorch script functions of its own.
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_whole_graph_trains_like_eager(backend):
    layer = BatchNorm2d(3)
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for seed in range(2):
        x = _images(4, 3, 5, 5, seed=seed)
        g = _images(4, 3, 5, 5, seed=9)
        leaf, copied = x.clone().requires_grad_(), x.clone().requires_grad_()
        output, expected = compiled(leaf), twin(copied)
        output.backward(g)
        expected.backward(g)
        torch.testing.assert_close(output, expected, rtol=0, atol=2e-6)
        torch.testing.assert_close(leaf.grad, copied.grad, rtol=0, atol=2e-6)
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.state_dict(), twin.state_dict(), rtol=0, atol=2e-6)
    assert layer.num_batches_tracked == 2


def test_compiled_whole_graph_evaluates_like_eager():
    layer = BatchNorm2d(3)
    layer(_images(4, 3, 5, 5))
    layer.eval()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = _images(4, 3, 5, 5, seed=1)
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=2e-6)


def test_compiled_hessian_equals_the_eager_one():
    """PyTorch's own layer is silently wrong there."""
    layer = BatchNorm1d(2).double()
    x = _images(5, 2).double()

    def loss(weight, bias, x):
        output = func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))
        return output.pow(3).sum()

    hessian = func.jacrev(func.jacrev(loss, argnums=2), argnums=2)
    expected = hessian(layer.weight, layer.bias, x)
    compiled = torch.compile(hessian, backend="aot_eager")
    torch.testing.assert_close(
        compiled(layer.weight, layer.bias, x), expected, rtol=1e-10, atol=1e-10
    )


def test_compiled_hessian_without_running_statistics_is_one_graph():
    layer = BatchNorm1d(2, affine=False, track_running_stats=False).double()
    x = _images(5, 2).double()
    hessian = func.jacrev(func.jacrev(lambda x: layer(x).pow(3).sum()))
    compiled = torch.compile(hessian, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), hessian(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_export_equals_eager_and_keeps_the_operator(training, strict):
    layer = BatchNorm2d(3).train(training)
    twin = copy.deepcopy(layer)
    x = _images(4, 3, 5, 5)
    program = torch.export.export(layer, (x,), strict=strict)
    assert any("batch_norm" in str(node.target) for node in program.graph.nodes)
    exported = program.module()
    torch.testing.assert_close(exported(x), twin(x), rtol=0, atol=2e-6)
    buffers = dict(exported.named_buffers())
    torch.testing.assert_close(buffers["running_var"], twin.running_var)
    if training:
        assert buffers["num_batches_tracked"] == 1


def test_tracing_and_fake_tensors_work_in_training():
    x = _images(4, 3)
    layer = BatchNorm1d(3)
    graph = make_fx(copy.deepcopy(layer))(x)
    torch.testing.assert_close(graph(x), layer(x))
    with FakeTensorMode():
        assert BatchNorm1d(3)(torch.empty(4, 3)).shape == (4, 3)
    assert BatchNorm1d(3, device="meta")(torch.empty(4, 3, device="meta")).shape == (4, 3)


# From torch.nn.functional.batch_norm itself, as it looks at the sizes.
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated")
def test_jit_trace_records_torchs_operator():
    layer = BatchNorm1d(3)
    traced = torch.jit.trace(layer, _images(4, 3), check_trace=False)
    assert "batch_norm" in str(traced.graph)


@pytest.mark.parametrize("process_group", [None, "world"])
def test_deepcopy_is_independent(process_group):
    layer = BatchNorm1d(3, process_group=process_group)
    layer.note = [1]
    duplicate = copy.deepcopy(nn.Sequential(layer, layer))
    assert duplicate[0] is duplicate[1]
    assert type(duplicate[0]) is BatchNorm1d
    assert duplicate[0].process_group == process_group
    with torch.no_grad():
        duplicate[0].weight.add_(1)
        duplicate[0].running_mean.add_(1)
    duplicate[0].note.append(2)
    assert torch.equal(layer.weight, torch.ones(3))
    assert torch.equal(layer.running_mean, torch.zeros(3))
    assert layer.note == [1]


def test_pickle_and_torch_save_keep_layer_and_values():
    layer = BatchNorm1d(3, momentum=None, process_group="world").eval()
    with torch.no_grad():
        layer.running_var.fill_(4.0)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for restored in (pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
        assert type(restored) is BatchNorm1d
        assert restored.momentum is None
        assert restored.process_group == "world"
        x = _images(4, 3)
        assert torch.equal(restored(x), layer(x))


def test_parametrized_weight_is_used_and_learned():
    layer = BatchNorm1d(3)

    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    x = _images(6, 3)
    torch.testing.assert_close(layer(x), 2 * BatchNorm1d(3)(x))
    layer(x).pow(3).sum().backward()
    assert layer.parametrizations.weight.original.grad.abs().sum() > 0


def test_activation_checkpointing_gives_the_same_gradients():
    layer = BatchNorm1d(3, track_running_stats=False)
    x, y = _images(6, 3).requires_grad_(), _images(6, 3).requires_grad_()
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).pow(3).sum().backward()
    layer(y).pow(3).sum().backward()
    assert torch.equal(x.grad, y.grad)
