"""The same probes in Lightning: one callback."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.integrations.lightning import ScopeCallback


class _Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=100)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


data = DataLoader(TensorDataset(*ns.data.load("digits").train), 64, shuffle=True, drop_last=True)
scope = ScopeCallback("cross_entropy", probes="standard", every=20)
options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
lightning.Trainer(max_epochs=2, callbacks=[scope], **options).fit(_Digits(), data)
scope.plot().savefig("scope.svg")
