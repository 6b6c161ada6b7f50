"""A Lightning module fed by feedline; stopped in mid-epoch, it goes on with the next batch.

feedline sample-data photos
python examples/with_lightning.py photos run    # kill it, start it again
"""

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from feedline.torch import DataLoader  # was: from torch.utils.data import DataLoader
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, classes)
        )

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        print(f"epoch {self.current_epoch} batch {number}: loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


photos, run = Path(sys.argv[1]), Path(sys.argv[2])
lightning.seed_everything(7, verbose=False)
chain = v2.Compose([v2.Resize(48), v2.CenterCrop(48), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
data = ImageFolder(str(photos), chain)
# Without a generator: Lightning's checkpoints do not hold the state of torch's global one, ours do.
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)

# Lightning asks the loader for its state at every checkpoint, and gives it back.
kept = ModelCheckpoint(run, save_last=True, every_n_train_steps=3, save_top_k=0)
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=3, callbacks=[kept], logger=False, enable_progress_bar=False
)
last = run / "last.ckpt"
trainer.fit(Classifier(len(data.classes)), loader, ckpt_path=last if last.exists() else None)
