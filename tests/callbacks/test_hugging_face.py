"""Hugging Face's own Trainer over a small BERT, for a few steps."""

import pytest
import torch
from torch import nn

from softvq import DDCLReadout, Temperature, with_readout

transformers = pytest.importorskip("transformers")
from softvq.callbacks.hugging_face import DDCLCallback  # noqa: E402


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=30,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
        options = Temperature(gradient=0.5, prototypes=0.3, unit="absolute", anneal_steps=8)
        self.body = with_readout(
            transformers.BertModel(config), DDCLReadout(8, 4, temperature=options)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids, labels):
        out = self.body(input_ids=input_ids)
        logits = self.head(out.mean)
        loss = nn.functional.cross_entropy(logits, labels) + out.loss
        return {"loss": loss, "logits": logits}


def make_examples():
    ids = (torch.arange(16 * 6).square() % 29).reshape(16, 6)
    return [{"input_ids": row, "labels": torch.tensor(n % 2)} for n, row in enumerate(ids)]


def test_the_trainer_updates_prototypes_and_logs_their_health(tmp_path, capsys):
    torch.manual_seed(0)
    model = Classifier()
    callback = DDCLCallback(codebook_lr="5x")
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(
        model, options, train_dataset=make_examples(), callbacks=[callback]
    )
    trainer.train()
    head = model.body.readout.prototypes.heads[0]
    assert int(head.updates) == 8
    groups = trainer.optimizer.param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(head.codebook)] == pytest.approx(5e-3)
    logged = [entry for entry in trainer.state.log_history if "ddcl_separation" in entry]
    assert len(logged) >= 2
    assert logged[0]["ddcl_distinct"] == 1.0
    assert "prototypes: " in capsys.readouterr().out
    assert head._updates is None
