"""The callback in real trainings by Lightning, and the examples of the scope."""

import csv
import importlib
import random
import runpy
import sys
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tests.references.loggers import sent
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import InputError, StateError
from normscope.integrations.lightning import ScopeCallback
from normscope.problem import cross_entropy
from normscope.results import Store

EXAMPLES = Path(__file__).parents[2] / "examples"

# Lightning's own: it uses what torch deprecates, and advises on workers
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`tensorboardX` has been removed"),
]


class Digits(lightning.LightningModule):
    def __init__(self, kind="sgd"):
        super().__init__()
        self.net = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=10, depth=3)
        self.drop = torch.nn.Dropout(0.3)
        self.kind = kind
        self.log_calls = 0

    def forward(self, x):
        return self.net(self.drop(x))

    def training_step(self, batch):
        self.log_calls += 1
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        if self.kind == "broken" and self.log_calls == 3:
            raise ZeroDivisionError("in the training")
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        if self.kind == "two":
            self.automatic_optimization = False
            return [optimizer, torch.optim.SGD(self.parameters(), 0.1)]
        return optimizer


def trained(callback, kind="sgd", logger=False, **options):
    lightning.seed_everything(3, verbose=False)
    module = Digits(kind)
    x, y = ns.data.load("digits").train
    data = DataLoader(TensorDataset(x[:240], y[:240]), 24, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[] if callback is None else [callback],
        **options,
    )
    trainer.fit(module, data)
    return module, trainer


def left(module, trainer):
    random_states = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1]]  # noqa: NPY002
    return repr(
        [
            {name: tensor.tolist() for name, tensor in module.state_dict().items()},
            trainer.optimizers[0].state_dict(),
            random_states,
            trainer.callback_metrics,
            module.log_calls,
        ]
    )


@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}]
)
def test_training_by_lightning_ends_in_the_same_bits(options):
    plain = left(*trained(None, **options))
    callback = ScopeCallback("cross_entropy", probes="all", every=7)
    assert left(*trained(callback, **options)) == plain
    updates = 25 if "accumulate_grad_batches" in options else 50
    assert callback.results["step"].values.tolist() == list(range(0, updates, 7))
    assert np.isfinite(callback.results["shift_cosine"]).all()


def test_trainers_loggers_are_given_every_number(tmp_path):
    callback = ScopeCallback("cross_entropy", probes="economy", every=20, log=True)
    plain = left(*trained(None))
    logger = CSVLogger(tmp_path)
    assert left(*trained(callback, logger=logger, log_every_n_steps=1)) == plain
    with (Path(logger.log_dir) / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    found = {
        (tag, int(row["step"])): float(value)
        for row in rows
        for tag, value in row.items()
        if tag.startswith("scope") and value
    }
    assert found == sent(callback.results).values
    assert {step for _, step in found} == {0, 20, 40}


def test_whole_loss_is_given_the_batch():
    whole = ns.whole_loss(lambda model, batch: cross_entropy(model(batch[0]), batch[1]))
    one = ScopeCallback("cross_entropy", probes="gradient_norms", every=10)
    other = ScopeCallback(whole, probes="gradient_norms", every=10)
    trained(one)
    trained(other)
    assert one.results.identical(other.results)
    assert one.plot().axes


def test_training_that_breaks_off_is_recorded(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        callback = ScopeCallback("cross_entropy", probes="gradient_norms", every=1, store=store)
        with pytest.raises(ZeroDivisionError):
            trained(callback, "broken")
        record = store.get(callback.scope.key)
        assert (record.state, record.error) == ("failed", "ZeroDivisionError: in the training")
        assert record.dataset.sizes["step"] == 2


def test_several_optimizers_are_refused():
    with pytest.raises(StateError, match="one optimizer, this one has 2"):
        trained(ScopeCallback("cross_entropy"), "two")


def test_results_need_a_training():
    with pytest.raises(StateError, match=r"no scope before the training starts; call Trainer\.fit"):
        _ = ScopeCallback("cross_entropy").results


def test_missing_package_is_told_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "normscope.integrations.lightning")
    with pytest.raises(StateError, match=r"install it by pip install 'normscope\[lightning\]'"):
        importlib.import_module("normscope.integrations.lightning")


@pytest.mark.parametrize("name", ["scope_plain_loop", "scope_lightning"])
def test_example_runs_and_is_short(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = EXAMPLES / f"{name}.py"
    runpy.run_path(str(path))
    assert (tmp_path / "scope.svg").stat().st_size > 10_000
    lines = path.read_text(encoding="utf-8").split('"""', 2)[2].splitlines()
    imports = ("import ", "from ")
    assert len([line for line in lines if line.strip() and not line.startswith(imports)]) <= 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probez": "economy"}, "unknown option 'probez' of ScopeCallback; did you mean 'probes'"),
        ({"optimizer": None}, "unknown option 'optimizer' of ScopeCallback"),
        ({"probes": "economi"}, "did you mean 'economy'"),
        ({"every": 0}, "every must be an integer of at least 1"),
        ({"distances": [2, 1]}, "distances must be positive, finite and increasing"),
    ],
)
def test_wrong_options_are_refused_before_the_training(options, message):
    with pytest.raises(InputError, match=message):
        ScopeCallback("cross_entropy", **options)
