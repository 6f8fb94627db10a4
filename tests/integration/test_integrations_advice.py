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
from normscope.integrations.lightning import LearningRateCallback, find_learning_rate
from normscope.integrations.lightning_training import read_optimizer
from normscope.problem import cross_entropy
from normscope.training.common_rate import CommonRate

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


def trained(callback, data=None, logger=False, around=None, **options):
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
        **(around or {}),
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


def test_callback_uses_clipping_and_accumulation_of_the_trainer():
    around = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    callback = LearningRateCallback("cross_entropy", effort="quick")
    trained(callback, around=around)
    notes = " ".join(callback.advice.notes)
    assert "norm 0.5" in notes
    assert "2 batches" in notes
    assert callback.advice.batch_size == 48
    own = LearningRateCallback("cross_entropy", verify=False, clip_norm=None, accumulate=1)
    trained(own, around=around)
    assert (own.advice.batch_size, own.advice.notes) == (24, ())


def test_callback_refuses_clipping_by_value():
    around = {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"}
    with pytest.raises(StateError, match="clips gradients by value"):
        trained(LearningRateCallback("cross_entropy"), around=around)


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


class Classifier(Digits):
    """A module whose loss, logs and optimizer are in its methods alone."""

    def __init__(self, configuration=None, **options):
        super().__init__(**options)
        self.configuration = configuration

    def training_step(self, batch, batch_idx):
        assert self.trainer.max_epochs == 2
        self.logger.experiment.add_scalar("step", batch_idx)
        self.log_dict({"rate": 1.0})
        return {"loss": super().training_step(batch)}

    def configure_optimizers(self):
        found = super().configure_optimizers()
        return found if self.configuration is None else self.configuration(found)


class DigitsData(lightning.LightningDataModule):
    def setup(self, stage):
        assert stage == "fit"
        self.loader = loader()

    def train_dataloader(self):
        return self.loader


def trainer_of(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2}
    return lightning.Trainer(**(quiet | options))


def modules_state(module, trainer):
    state = {name: tensor.tolist() for name, tensor in module.state_dict().items()}
    names = sorted(vars(module))
    gradients = [each.grad for each in module.parameters()]
    return repr([state, names, module._trainer, module.calls, gradients, trainer.loggers])


@pytest.mark.parametrize("source", ["loader", "data module", "list"])
def test_rate_is_found_for_a_module_and_its_trainer(source):
    lightning.seed_everything(3, verbose=False)
    module, trainer = Classifier(), trainer_of()
    x, y = ns.data.load("digits").train
    batches = list(zip(x[:96].split(24), y[:96].split(24), strict=True))
    data = {"loader": loader(), "data module": DigitsData(), "list": batches}[source]
    before, random = modules_state(module, trainer), torch.get_rng_state()
    advice = find_learning_rate(trainer, module, data, effort="quick")
    assert modules_state(module, trainer) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert source != "data module" or not hasattr(data, "loader")
    assert advice.rule.momentum == 0.9
    assert advice.batch_size == 24
    assert advice.predicted is not None
    low, high = advice.verified
    assert low < high


def test_rate_with_a_list_of_batches_is_that_of_the_plain_call():
    lightning.seed_everything(3, verbose=False)
    module = Classifier()
    x, y = ns.data.load("digits").train
    batches = list(zip(x[:96].split(24), y[:96].split(24), strict=True))
    found = find_learning_rate(trainer_of(), module, batches, verify=False)
    loss = ns.whole_loss(lambda module, batch: cross_entropy(module(batch[0]), batch[1]))
    expected = ns.max_learning_rate(module, loss, batches, momentum=0.9, verify=False)
    assert found.bound == pytest.approx(expected.bound, rel=1e-6)
    assert found.limit == pytest.approx(expected.limit, rel=1e-6)


@pytest.mark.parametrize(
    ("configuration", "note"),
    [
        (lambda made: [made], None),
        (lambda made: {"optimizer": made}, None),
        (
            lambda made: {
                "optimizer": made,
                "lr_scheduler": {
                    "scheduler": torch.optim.lr_scheduler.LinearLR(made, 0.1, total_iters=5),
                    "interval": "step",
                },
            },
            "before the schedule",
        ),
        (
            lambda made: ([made], [torch.optim.lr_scheduler.ExponentialLR(made, 0.9)]),
            "before the schedule",
        ),
        (
            lambda made: {
                "optimizer": made,
                "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(made),
                "monitor": "loss",
            },
            None,
        ),
    ],
    ids=["list", "dict", "warm-up", "by epoch", "by metric"],
)
def test_schedule_of_the_module_is_followed(configuration, note):
    advice = find_learning_rate(trainer_of(), Classifier(configuration), loader(), effort="quick")
    assert ("before the schedule" in " ".join(advice.notes)) == (note is not None)


def test_followed_schedule_is_that_of_the_training():
    def warm_up(made):
        schedule = torch.optim.lr_scheduler.LinearLR(made, 0.1, total_iters=5)
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Classifier(warm_up)
    given = read_optimizer(trainer_of(), module, loader())
    made = CommonRate(given["optimizer"](None), given["scheduler"])
    followed = []
    for _ in range(6):
        followed.append(made.relative_rates[0])
        for each in module.parameters():
            each.grad = torch.zeros_like(each)
        made.step()
    expected = [0.1 + 0.9 * min(step, 5) / 5 for step in range(6)]
    assert followed == pytest.approx(expected)


class OneCycle(Digits):
    """A module whose schedule is as long as the training."""

    def configure_optimizers(self):
        self.updates = self.trainer.estimated_stepping_batches
        made = super().configure_optimizers()
        cycle = torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=self.updates)
        return [made], [{"scheduler": cycle, "interval": "step"}]


@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 40},
        {"max_epochs": 60, "accumulate_grad_batches": 3},
        {"max_epochs": 60, "limit_train_batches": 0.5},
        {"max_epochs": 60, "limit_train_batches": 3},
        {"max_epochs": 60, "max_steps": 110},
        {"max_epochs": -1, "max_steps": 110},
    ],
)
def test_schedule_as_long_as_the_training_is_followed(options):
    asked, own = OneCycle(), OneCycle()
    numbers = []
    asked.configure_optimizers = lambda: recorded(asked, numbers)
    advice = find_learning_rate(trainer_of(**options), asked, loader(), effort="quick")
    assert "max_lr of the schedule" in " ".join(advice.notes)
    ended = trainer_of(**options, callbacks=[Ended()])
    ended.fit(own, loader())
    assert set(numbers) == {own.updates}


def recorded(module, numbers):
    made = OneCycle.configure_optimizers(module)
    numbers.append(module.updates)
    return made


class Ended(lightning.Callback):
    """Ends a training after its first batch."""

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = True


def test_clipping_and_accumulation_of_the_trainer_are_used():
    trainer = trainer_of(gradient_clip_val=0.5, accumulate_grad_batches=2)
    advice = find_learning_rate(trainer, Classifier(), loader(), effort="quick")
    notes = " ".join(advice.notes)
    assert "norm 0.5" in notes
    assert "2 batches" in notes
    assert advice.batch_size == 48


def test_trainings_of_unknown_steps_are_refused():
    class Manual(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Stepping(Classifier):
        def optimizer_step(self, *given, **options):
            super().optimizer_step(*given, **options)

    by_value = {"gradient_clip_val": 1, "gradient_clip_algorithm": "value"}
    cases = [
        (Manual(), {}, loader(), "optimizes manually"),
        (Stepping(), {}, loader(), "overrides optimizer_step"),
        (Classifier(lambda made: [made, made]), {}, loader(), "the module has 2"),
        (Classifier(lambda made: 1 / 0), {}, loader(), "configure_optimizers failed outside"),
        (Classifier(), by_value, loader(), "clips gradients by value"),
    ]
    for module, options, data, message in cases:
        with pytest.raises(StateError, match=message):
            find_learning_rate(trainer_of(**options), module, data)
    with pytest.raises(InputError, match="no training data"):
        find_learning_rate(trainer_of(), Classifier())
    with pytest.raises(InputError, match="not one DataLoader"):
        find_learning_rate(trainer_of(), Classifier(), {"a": loader()})
