"""Hugging Face's Trainer with feedline's loaders; stopped in mid-epoch, it goes on with the next batch.

python examples/with_trainer.py FOLDER    # kill it, start it again
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from feedline.torch import use_in_accelerate
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

# The one line: all loaders of the Trainer (to train, evaluate and predict) are feedline's after it.
use_in_accelerate()

folder = Path(sys.argv[1])


class Counted(Dataset[Any]):
    """Sequences that count up."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 12) % 50
        return {"input_ids": tokens, "labels": tokens}


class Shown(TrainerCallback):  # type: ignore[misc]
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **further: Any) -> None:
        if "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']}", flush=True)


arguments = TrainingArguments(
    str(folder),
    per_device_train_batch_size=8,
    num_train_epochs=3,
    dataloader_num_workers=2,
    logging_steps=1,
    save_steps=5,
    save_total_limit=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    seed=7,
)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
trainer = Trainer(model, arguments, train_dataset=Counted(), eval_dataset=Counted(), callbacks=[Shown()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.exists() else None)
print(f"evaluated: {trainer.evaluate()['eval_loss']:.4f}")
