"""torch.distributed.checkpoint with the loader's state beside the model's.

python examples/with_checkpoint.py FOLDER    # kill it, start it again
torchrun --nproc-per-node 2 examples/with_checkpoint.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from feedline.torch import DataLoader  # was: from torch.utils.data import DataLoader
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DistributedSampler, TensorDataset

STEPS, EVERY = 24, 5
folder = Path(sys.argv[1])
several = "RANK" in os.environ
if several:
    dist.init_process_group("gloo")
rank = dist.get_rank() if several else 0

torch.manual_seed(0)
inputs = torch.randn(160, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = nn.Linear(8, 1)
training = nn.parallel.DistributedDataParallel(model) if several else model
optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sampler = DistributedSampler(data) if several else None
loader = DataLoader(data, 16, shuffle=sampler is None, sampler=sampler, num_workers=2)


def state(step: int) -> dict[str, object]:
    weights, steps = get_state_dict(model, optimiser)
    # Each rank has a loader of its own, so each has a key of its own.
    return {"model": weights, "optimiser": steps, f"loader {rank}": loader.state_dict(), "step": step}


found = sorted(path for path in folder.glob("*") if path.name.isdigit())
step = 0
if found:
    loaded = state(step)
    dcp.load(loaded, checkpoint_id=found[-1])
    set_state_dict(model, optimiser, model_state_dict=loaded["model"], optim_state_dict=loaded["optimiser"])
    loader.load_state_dict(loaded[f"loader {rank}"])
    step = loaded["step"]
while step < STEPS:
    for inputs, outputs in loader:
        loss = nn.functional.mse_loss(training(inputs), outputs)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        if rank == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)
        if step % EVERY == 0:
            dcp.save(state(step), checkpoint_id=folder / "partial")
            if rank == 0:
                (folder / "partial").rename(folder / f"{step:06}")
        if step == STEPS:
            break
if several:
    dist.destroy_process_group()
