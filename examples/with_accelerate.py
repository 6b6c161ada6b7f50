"""A training loop in accelerate's style, with feedline's loader and accelerate's own checkpoints.

python examples/with_accelerate.py FOLDER    # stop it and start it again
accelerate launch --cpu --num_processes 2 examples/with_accelerate.py FOLDER
accelerate launch --cpu --num_processes 2 examples/with_accelerate.py FOLDER --dispatch  # one reads for all
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from feedline.torch import DataLoader, adopt  # was: from torch.utils.data import DataLoader
from torch import nn
from torch.utils.data import TensorDataset

STEPS, EVERY = 40, 5
folder = Path(sys.argv[1])

torch.manual_seed(0)
pixels = torch.randn(203, 3, 8, 8)
data = TensorDataset(pixels, (pixels.mean((1, 2, 3)) > 0).long())
model: nn.Module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
optimiser: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)

shares = DataLoaderConfiguration(dispatch_batches="--dispatch" in sys.argv)
accelerator = Accelerator(cpu=True, dataloader_config=shares)
model, optimiser, prepared = accelerator.prepare(model, optimiser, loader)
# accelerate puts a loader of torch's own class in the place of the one it is given; this puts
# feedline's back, with the share of the samples that accelerate gave to this process.
loader = adopt(prepared, loader)

# The folders are named after steps; one that is being written is not among them.
found = sorted(path for path in folder.glob("*") if path.name.isdigit())
step = int(found[-1].name) if found else 0
if found:
    accelerator.load_state(str(found[-1]))
while step < STEPS:
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        accelerator.backward(loss)
        optimiser.step()
        step += 1
        accelerator.print(f"step {step}: loss {loss.item():.9f}")
        if step % EVERY == 0:
            accelerator.save_state(str(folder / "partial"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / "partial").rename(folder / f"{step:06}")
        if step == STEPS:
            break
accelerator.end_training()
