"""A missing optional package raises one sentence that says how to install it."""

import importlib
import sys

import pytest

from normscope.errors import StateError


@pytest.mark.parametrize(
    ("module", "package", "use"),
    [
        ("tensorboard", "tensorboard", lambda module: module.summary_writer("runs")),
        ("wandb", "wandb", lambda module: module.WandbLogger()),
        ("mlflow", "mlflow", lambda module: module.MLflowLogger()),
        ("transformers", "transformers", lambda module: module.ScopeCallback()),
    ],
)
def test_missing_package_names_the_extra(module, package, use, monkeypatch):
    name = f"normscope.integrations.{module}"
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = importlib.import_module(name)  # reading the module needs nothing
    monkeypatch.delitem(sys.modules, name)
    remedy = rf"install it by pip install 'normscope\[{module}\]'"
    expected = rf"^{name} needs the package {package}; {remedy}\.$"
    with pytest.raises(StateError, match=expected):
        use(loaded)
