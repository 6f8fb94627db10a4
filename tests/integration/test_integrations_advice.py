"""Learning-rate advice before a training by Lightning, which then runs as if it had not been."""

import runpy
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import InputError, StateError
from normscope.integrations.lightning import LearningRateCallback
from normscope.problem import cross_entropy

EXAMPLES = Path(__file__).parents[2] / "examples"

# Lightning's own: it uses what torch deprecates, and advises on workers
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`tensorboardX` has been removed"),
]


class Digits(lightning.LightningModule):
    def __init__(self, scheduled=False, groups=False):
        super().__init__()
        self.net = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=10, depth=3)
        self.drop = torch.nn.Dropout(0.3)
        self.scheduled, self.groups = scheduled, groups
        self.calls = 0

    def forward(self, x):
        return self.net(self.drop(x))

    def training_step(self, batch):
        self.calls += 1
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        parameters = list(self.parameters())
        groups = [{"params": parameters[:2], "weight_decay": 1e-3}, {"params": parameters[2:]}]
        given = groups if self.groups else parameters
        optimizer = torch.optim.SGD(given, 0.01, momentum=0.9)
        if self.scheduled:
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
        return optimizer


def loader(**options):
    x, y = ns.data.load("digits").train
    return DataLoader(TensorDataset(x[:96], y[:96]), 24, shuffle=True, **options)


def trained(callback, data=None, logger=False, **options):
    lightning.seed_everything(3, verbose=False)
    module = Digits(**options)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[] if callback is None else [callback],
    )
    trainer.fit(module, loader() if data is None else data)
    return module, trainer


def left(module, trainer):
    state = {name: tensor.tolist() for name, tensor in module.state_dict().items()}
    optimizer = trainer.optimizers[0].state_dict()
    metrics = trainer.callback_metrics
    return repr([state, optimizer, torch.get_rng_state().tolist(), metrics, module.calls])


@pytest.mark.parametrize("verify", [False, True])
def test_training_after_the_advice_ends_in_the_same_bits(verify):
    callback = LearningRateCallback("cross_entropy", verify=verify)
    assert left(*trained(callback)) == left(*trained(None))
    assert (callback.advice.verified is not None) == verify


@pytest.mark.filterwarnings("ignore:.*worker.*")
def test_loader_with_lasting_workers_is_left_as_it_was():
    def with_workers():
        return loader(
            num_workers=1, persistent_workers=True, generator=torch.Generator().manual_seed(5)
        )

    callback = LearningRateCallback("cross_entropy", verify=False)
    asked, plain = with_workers(), with_workers()
    assert left(*trained(callback, asked)) == left(*trained(None, plain))
    assert torch.equal(asked.generator.get_state(), plain.generator.get_state())


def test_advice_is_that_of_the_optimizer_on_the_data():
    callback = LearningRateCallback("cross_entropy", verify=False)
    trained(callback)
    lightning.seed_everything(3, verbose=False)
    module = Digits()
    module.train()
    expected = ns.max_learning_rate(module, "cross_entropy", loader(), momentum=0.9, verify=False)
    assert callback.advice.curvature_bound == pytest.approx(expected.curvature_bound, rel=1e-6)
    assert callback.advice.rule.momentum == 0.9


def test_rate_is_set_in_every_group():
    callback = LearningRateCallback("cross_entropy", set_rate=True, verify=False)
    _, trainer = trained(callback, groups=True)
    rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
    assert rates == 2 * [callback.advice.recommended]


def test_advice_is_logged_with_the_training(tmp_path):
    callback = LearningRateCallback("cross_entropy", verify=False)
    logger = CSVLogger(tmp_path)
    trained(callback, logger=logger)
    table = np.genfromtxt(
        Path(logger.log_dir) / "metrics.csv", delimiter=",", names=True, deletechars=""
    )
    first = table[0]
    assert first["learning_rate/recommended"] == callback.advice.recommended
    assert first["learning_rate/curvature_bound"] == callback.advice.curvature_bound


def test_own_data_is_asked_in_place_of_the_trainers():
    x, y = ns.data.load("digits").train
    callback = LearningRateCallback("cross_entropy", data=(x[:50], y[:50]), verify=False)
    trained(callback)
    assert callback.advice.batch_size == 50


def test_unfit_trainings_are_refused():
    with pytest.raises(StateError, match="set_rate needs a training without a scheduler"):
        trained(LearningRateCallback("cross_entropy", set_rate=True), scheduled=True)
    with pytest.raises(InputError, match=r"a dict, not one DataLoader.*data="):
        trained(LearningRateCallback("cross_entropy"), {"a": loader()})
    with pytest.raises(StateError, match="no advice before the training starts"):
        _ = LearningRateCallback("cross_entropy").advice


def test_example_trains_at_the_recommended_rate(capsys):
    names = runpy.run_path(str(EXAMPLES / "lightning_learning_rate.py"))
    rate = names["trainer"].optimizers[0].param_groups[0]["lr"]
    assert rate == names["advisor"].advice.recommended
    assert f"trained at {rate:.3g}" in capsys.readouterr().out
