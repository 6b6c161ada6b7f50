"""A Hugging Face data set, backed by Arrow files on the local disk, through feedline's loader.

python examples/with_datasets.py FOLDER
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from datasets import Dataset, load_from_disk
from feedline.torch import DataLoader  # was: from torch.utils.data import DataLoader
from torch import nn

folder = Path(sys.argv[1])
if not folder.exists():
    # Sequences of different lengths, as a tokeniser leaves them.
    generator = np.random.default_rng(0)
    rows = [generator.integers(1, 100, generator.integers(5, 20)) for _ in range(200)]
    Dataset.from_dict({"tokens": rows, "label": [int(row.sum() % 2) for row in rows]}).save_to_disk(folder)

# Opened again in every worker: what travels there is the names of the Arrow files, not the data.
data = load_from_disk(folder).with_format("torch")


def pad(rows: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = nn.utils.rnn.pad_sequence([row["tokens"] for row in rows], batch_first=True)
    return tokens, torch.stack([row["label"] for row in rows])


torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(100, 16, padding_idx=0), nn.Linear(16, 2))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, collate_fn=pad)
for epoch in range(2):
    for tokens, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")

# A streaming data set: every worker reads its own shards.
stream = data.to_iterable_dataset(num_shards=2)
for tokens, _ in DataLoader(stream, batch_size=16, num_workers=2, collate_fn=pad):
    model(tokens)
print("streamed")
