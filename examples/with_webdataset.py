"""A webdataset pipeline: shards to nodes, shards to workers, decoding and batching of its own.

python examples/with_webdataset.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import torch
import webdataset
from feedline.torch import DataLoader  # was: webdataset.WebLoader
from torch import nn

folder = Path(sys.argv[1])
if not folder.exists():
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    with webdataset.ShardWriter(f"{folder}/%04d.tar", maxcount=40, verbose=0) as shards:
        for number in range(160):
            features = generator.standard_normal(8).astype(np.float32)
            shards.write({"__key__": f"{number:06}", "x.npy": features, "y.cls": int(features.sum() > 0)})

urls = sorted(str(path) for path in folder.glob("*.tar"))
data = webdataset.DataPipeline(
    webdataset.SimpleShardList(urls, seed=7),
    webdataset.split_by_node,
    webdataset.split_by_worker,
    webdataset.tarfile_to_samples(),
    webdataset.decode(),
    webdataset.to_tuple("x.npy", "y.cls"),
    webdataset.batched(10),
)
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
# The pipeline makes the batches, so the loader is to make none.
loader = DataLoader(data, batch_size=None, num_workers=2)
for epoch in range(2):
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(torch.as_tensor(features)), torch.as_tensor(labels))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch}: loss {loss.item():.6f}", flush=True)
