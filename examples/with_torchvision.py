"""torchvision's data sets and transforms, with feedline's loader in place of torch's.

feedline sample-data photos
python examples/with_torchvision.py photos
"""

import sys

import torch
from feedline.torch import DataLoader  # was: from torch.utils.data import DataLoader
from torch import nn
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import v2

torch.manual_seed(0)
chain = v2.Compose(
    [
        v2.Resize(48),
        v2.CenterCrop(48),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
photos = ImageFolder(sys.argv[1], chain)
noise = FakeData(64, (3, 64, 64), num_classes=len(photos.classes), transform=chain)

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(len(photos.classes))
)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
for name, data in {"photos": photos, "noise": noise}.items():
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"{name}, epoch {epoch}: loss {loss.item():.4f}")
