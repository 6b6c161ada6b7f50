"""A loader whose one iterator goes through all epochs, as ultralytics' InfiniteDataLoader does.

python examples/with_infinite.py
"""

from collections.abc import Iterator
from typing import Any

import torch
from feedline.torch import DataLoader  # was: from torch.utils.data import DataLoader
from torch import nn
from torch.utils.data import TensorDataset


class Repeated:
    """A batch sampler that begins again when it is over."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.batches


class InfiniteDataLoader(DataLoader[Any]):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        batches: Any = self.batch_sampler
        return len(batches.batches)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        """To be called when the data set has changed; it begins where `load_state_dict` says."""
        self.iterator = self._get_iterator()


def make() -> InfiniteDataLoader:
    torch.manual_seed(0)
    inputs = torch.randn(200, 8)
    return InfiniteDataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True)), 16, shuffle=True, num_workers=2
    )


loader = make()
model = nn.Linear(8, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    if epoch == 2:
        # The workers and the order go on from epoch to epoch; this makes new ones.
        loader.reset()
    for inputs, outputs in loader:
        loss = nn.functional.mse_loss(model(inputs), outputs)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch}: loss {loss.item():.6f}", flush=True)
