"""timm's create_loader and its multi-epoch loader with feedline's workers.

feedline sample-data photos
python examples/with_timm.py photos
"""

import sys

import feedline.torch
import timm.data.loader
import torch
from timm.data import create_dataset, create_loader
from torch import nn


# timm's own subclass of torch's loader, on top of feedline's.
class MultiEpochs(timm.data.loader.MultiEpochsDataLoader, feedline.torch.DataLoader):  # type: ignore[misc]
    pass


timm.data.loader.MultiEpochsDataLoader = MultiEpochs

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 4))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
for several in (False, True):
    loader = create_loader(
        create_dataset("", root=sys.argv[1]),
        input_size=(3, 64, 64),
        batch_size=16,
        is_training=True,
        no_aug=True,
        num_workers=2,
        device=torch.device("cpu"),
        use_multi_epochs_loader=several,
    )
    if not several:
        # What it makes is of torch's class, inside of a loader that normalises.
        loader.loader = feedline.torch.adopt(loader.loader)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"{type(loader.loader).__name__}, epoch {epoch}: loss {loss.item():.4f}", flush=True)
