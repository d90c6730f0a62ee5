"""Lightning's own Trainer, for a few steps."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from softvq import DDCLReadout, Temperature

lightning = pytest.importorskip("pytorch_lightning")
from softvq.callbacks.lightning import DDCLCallback  # noqa: E402


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        options = Temperature(gradient=0.5, prototypes=0.3, unit="absolute", anneal_steps=8)
        self.body = nn.Linear(6, 8)
        self.readout = DDCLReadout(8, 4, temperature=options)
        self.head = nn.Linear(8, 2)

    def training_step(self, batch, index):
        tokens, labels = batch
        out = self.readout(self.body(tokens))
        return nn.functional.cross_entropy(self.head(out.mean), labels) + out.loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [LambdaLR(optimizer, lambda epoch: 1.0)]


# What Lightning says of this machine, of a small data set and of what it leaves open.
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_updates_prototypes_and_logs_their_health(tmp_path, capsys):
    torch.manual_seed(0)
    tokens = torch.sin(torch.arange(32 * 5 * 6.0).square()).reshape(32, 5, 6)
    data = torch.utils.data.TensorDataset(tokens, torch.arange(32) % 2)
    model = Classifier()
    trainer = lightning.Trainer(
        max_steps=8,
        accelerator="cpu",
        devices=1,
        callbacks=[DDCLCallback(codebook_lr="5x")],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=2,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    head = model.readout.prototypes.heads[0]
    assert int(head.updates) == 8
    groups = trainer.optimizers[0].param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(head.codebook)] == pytest.approx(5e-3)
    assert trainer.callback_metrics["ddcl/distinct"] == 1.0
    assert "prototypes: " in capsys.readouterr().out
    assert head._updates is None
