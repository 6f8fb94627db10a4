"""Second derivatives through rms, instance and dyt against autograd's Hessian in float64."""

import pytest
import torch

import normscope as ns

CASES = [
    *(("fully_connected", kind, {"width": 4, "depth": 3}) for kind in ("rms", "dyt")),
    *(("conv_net", kind, {"channels": (2, 2, 2)}) for kind in ("rms", "dyt", "instance")),
]


@pytest.mark.parametrize(("model", "kind", "options"), CASES)
def test_hessian_is_that_of_autograd_in_every_mode(model, kind, options):
    shape = (1, 23, 23) if model == "conv_net" else (4,)
    net = ns.models.build(model, norm=kind, input_shape=shape, outputs=3, **options).double()
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(6) % 3
    names = [name for name, _ in net.named_parameters()]
    sizes = [parameter.numel() for parameter in net.parameters()]
    shapes = [parameter.shape for parameter in net.parameters()]

    def loss(flat):
        parts = [part.reshape(size) for part, size in zip(flat.split(sizes), shapes, strict=True)]
        output = torch.func.functional_call(net, dict(zip(names, parts, strict=True)), (x,))
        return torch.nn.functional.cross_entropy(output, y)

    flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    expected = torch.autograd.functional.hessian(loss, flat)
    top = torch.linalg.eigvalsh(expected)[-1].item()
    found = ns.curvature.dense(net, "cross_entropy", (x, y), kind="hessian", mode="train")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for mode in ("frozen", "eval"):  # no mode changes the statistics of a sample
        value = ns.curvature.top_eigenvalue(
            net, "cross_entropy", (x, y), kind="hessian", mode=mode, tol=1e-4, vectors=False
        ).value
        assert value == pytest.approx(top, rel=1e-3)
