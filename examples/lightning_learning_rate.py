"""How large a learning rate, asked before a Lightning trainer takes its first step."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.integrations.lightning import LearningRateCallback


class _Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=100)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


data = DataLoader(TensorDataset(*ns.data.load("digits").train), 64, shuffle=True, drop_last=True)
advisor = LearningRateCallback("cross_entropy", set_rate=True, verify=False)
options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
trainer = lightning.Trainer(max_epochs=1, callbacks=[advisor], **options)
trainer.fit(_Digits(), data)
print(advisor.advice)
print(f"trained at {trainer.optimizers[0].param_groups[0]['lr']:.3g}")
