"""The examples run, give the batches that torch's own loader gives, and survive `kill -9` to the bit."""

from __future__ import annotations

import atexit
import gc
import hashlib
import multiprocessing
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline.torch
import pytest
import torch
from conftest import HANG, until

EXAMPLES = Path(__file__).parents[2] / "examples"

# transformers 4 fails to import where there are TensorFlow and Keras 3, which it does not need here.
os.environ.setdefault("USE_TF", "0")

#: Programs are forked from a process that has these, which take most of their time to import.
PRELOADED = ["accelerate", "datasets", "lightning", "timm", "torchvision", "webdataset", __name__]
START = multiprocessing.get_context("forkserver")
START.set_forkserver_preload(PRELOADED)


def play(output: Path, program: Callable[..., None], *arguments: Any) -> None:
    """The beginning of a program's process."""
    os.setsid()
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # The program's own workers start as they always do.
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    # Threads that wait for each other are slow where others use the cores too.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        program(*arguments)
    finally:
        atexit._run_exitfuncs()


def example(path: Path, *arguments: object) -> None:
    """Runs an example as `python path arguments` does."""
    sys.argv = [str(path), *map(str, arguments)]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def recorded(kind: str, record: Path, path: Path, *arguments: object) -> None:
    """Runs an example with torch's loader or with ours, and writes a digest of what every module of the
    model was given: what a batch held, in which order, and all that came of it."""
    if kind == "torch":
        feedline.torch.DataLoader = torch.utils.data.DataLoader
        feedline.torch.adopt = lambda prepared, loader=None: prepared
        feedline.torch.use_in_accelerate = lambda **settings: None
        # For examples that save it: a state that says nothing.
        feedline.torch.DataLoader.state_dict = lambda self: {"none": 0}
    made = feedline.torch.DataLoader.__iter__
    used = []

    def begin(self: Any) -> Any:
        used.append(type(self))
        return made(self)

    feedline.torch.DataLoader.__iter__ = begin
    with record.open("w") as lines:

        def note(module: Any, inputs: Any) -> None:
            # torchvision's transforms are modules too, some in this process.
            for tensor in inputs if type(module).__module__.startswith("torch.nn.") else ():
                digest = hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()
                print(type(module).__name__, tuple(tensor.shape), tensor.dtype, digest, file=lines)

        torch.nn.modules.module.register_module_forward_pre_hook(note)
        example(path, *arguments)
    assert used and all(issubclass(one, feedline.torch.DataLoader) for one in used), used


class Counted:
    """A file that is the end of its process when so many texts with a mark were written."""

    def __init__(self, file: Any, mark: str, left: int) -> None:
        self.file, self.mark, self.left = file, mark, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()
        self.left -= self.mark in text
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(losses: int, path: Path, *arguments: object) -> None:
    """Runs an example that is killed as soon as it has written so many losses."""
    opened = Path.open

    def watched(path: Path, *settings: Any, **more: Any) -> Any:
        file = opened(path, *settings, **more)
        return Counted(file, "0x", losses) if path.name == "losses.txt" else file

    Path.open = watched  # type: ignore[method-assign, assignment]
    sys.stdout = Counted(sys.stdout, ": loss ", losses)
    example(path, *arguments)


@pytest.fixture(scope="session")
def sample_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 of the sample photos in four classes."""
    path = tmp_path_factory.mktemp("examples") / "photos"
    command = [sys.executable, "-m", "feedline", "sample-data", str(path), "--count", "128", "--classes", "4"]
    subprocess.run(command, check=True, capture_output=True)
    return path


class Run:
    """A program in a process group of its own."""

    def __init__(self, output: Path, program: Callable[..., None], *arguments: object) -> None:
        self.output = output
        self.process = START.Process(target=play, args=(output, program, *arguments))
        self.process.start()

    def ends_with(self, code: int) -> None:
        """Waits for its end; its workers have noticed then."""
        try:
            self.process.join(HANG)
            assert self.process.exitcode == code, self.output.read_text()
            until(lambda: not self.members(), "the end of its workers")
        finally:
            if self.process.is_alive() or self.members():
                os.killpg(self.process.pid or 0, signal.SIGKILL)
                self.process.join()

    def members(self) -> list[str]:
        """The command lines of the group's living processes."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _parent, group, *_ = stat.read_text().rpartition(")")[2].split()
                if int(group) == self.process.pid and state != "Z":
                    found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


TRAININGS = {
    "torch": ["train_torch.py"],
    "torch-native": ["train_torch.py", "--native"],
    "numpy": ["train_numpy.py"],
}


@pytest.mark.parametrize("training", TRAININGS)
def test_the_loss_curve_survives_a_kill(training: str, sample_photos: Path, tmp_path: Path) -> None:
    script, *flags = TRAININGS[training]
    # 16 batches an epoch. Worker processes take seconds to start, and the first batches are made by
    # the caller meanwhile: that run is longer.
    steps, every, epoch = 80 if training == "torch" else 60, 7, 16
    flags += ["--steps", str(steps), "--every", str(every), "--batch-size", "8"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    # With another number of workers, which must make no difference either.
    alone = [EXAMPLES / script, sample_photos, whole, *flags, "--workers", "0"]
    Run(tmp_path / "whole.txt", example, *alone).ends_with(0)
    # Not right after a checkpoint, nor at the end of an epoch.
    at = random.choice([step for step in range(every + 1, steps - 10) if step % every and step % epoch])
    command = [EXAMPLES / script, sample_photos, broken, *flags, "--workers", "3"]
    Run(tmp_path / "broken.txt", killed, at, *command).ends_with(-signal.SIGKILL)
    assert len(lines(broken / "losses.txt")) == at
    Run(tmp_path / "broken.txt", example, *command).ends_with(0)
    assert "going on after step" in (tmp_path / "broken.txt").read_text()
    curve = lines(whole / "losses.txt")
    assert len(curve) == len(set(curve)) == steps
    assert lines(broken / "losses.txt") == curve, f"killed after step {at}"


INTEGRATIONS = {
    "with_torchvision.py": ["PHOTOS"],
    "with_datasets.py": ["SCRATCH"],
    "with_accelerate.py": ["SCRATCH"],
    "with_lightning.py": ["PHOTOS", "SCRATCH"],
    "with_trainer.py": ["SCRATCH"],
    "with_timm.py": ["PHOTOS"],
    "with_infinite.py": [],
    "with_webdataset.py": ["SCRATCH"],
    "with_checkpoint.py": ["SCRATCH"],
}


@pytest.mark.parametrize("script", INTEGRATIONS)
def test_batches_are_those_of_torch(script: str, sample_photos: Path, tmp_path: Path) -> None:
    runs = []
    for kind in ("torch", "feedline"):
        places = {"PHOTOS": sample_photos, "SCRATCH": tmp_path / f"{kind}-scratch"}
        arguments = [places[name] for name in INTEGRATIONS[script]]
        record = tmp_path / f"{kind}.record"
        runs.append(Run(tmp_path / f"{kind}.txt", recorded, kind, record, EXAMPLES / script, *arguments))
    for run in runs:
        run.ends_with(0)
    expected = lines(tmp_path / "torch.record")
    assert len(expected) > 20
    assert lines(tmp_path / "feedline.record") == expected


@pytest.mark.parametrize(
    "script", ["with_accelerate.py", "with_checkpoint.py", "with_lightning.py", "with_trainer.py"]
)
def test_frameworks_resume_with_their_own_checkpoints(
    script: str, sample_photos: Path, tmp_path: Path
) -> None:
    def said(path: Path) -> list[str]:
        return [line for line in lines(path) if ": loss " in line]

    def command(kind: str) -> list[object]:
        places = {"PHOTOS": sample_photos, "SCRATCH": tmp_path / kind}
        return [EXAMPLES / script, *(places[name] for name in INTEGRATIONS[script])]

    whole, broken = tmp_path / "whole.txt", tmp_path / "broken.txt"
    Run(whole, example, *command("whole")).ends_with(0)
    at = random.randrange(8, 16)
    Run(broken, killed, at, *command("broken")).ends_with(-signal.SIGKILL)
    before = said(broken)
    assert len(before) == at
    Run(broken, example, *command("broken")).ends_with(0)
    after = said(broken)[len(before) :]
    curve = said(whole)
    assert before == curve[: len(before)]
    # It goes on after its last checkpoint, not at the beginning.
    assert 0 < len(after) < len(curve)
    assert after == curve[-len(after) :], f"killed after {len(before)} steps"


#: Lightning puts a DistributedSampler into a loader by making another one of its class.
DISTRIBUTED = """
import sys
import warnings
import lightning, torch
from torch.utils.data import DistributedSampler, TensorDataset
from feedline.torch import DataLoader

class Module(lightning.LightningModule):
    def __init__(self, hook):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        if hook:
            self.train_dataloader = make
    def training_step(self, batch, number):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def make():
    data = TensorDataset(torch.randn(40, 4))
    return DataLoader(
        data, 8, shuffle=True, num_workers=2, executor="processes", random="worker", snapshot_every_n_steps=3
    )

for hook in (False, True):
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=1, max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False,
    )
    trainer.fit(Module(hook), None if hook else make())
    loader = trainer.train_dataloader
    assert type(loader) is DataLoader, type(loader)
    assert isinstance(loader.sampler, DistributedSampler), loader.sampler
    given = loader.executor, loader.random, loader.snapshot_every_n_steps
    assert given == ("processes", "worker", 3), given
    assert (loader.batch_size, loader.num_workers) == (8, 2)
    assert trainer.global_step == 5
"""


def test_lightning_keeps_our_arguments_when_it_replaces_samplers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DISTRIBUTED)
    Run(tmp_path / "output.txt", example, tmp_path / "program.py").ends_with(0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"even_batches": False}, {"split_batches": True}, {"stream": True}])
@pytest.mark.parametrize("process", [0, 1])
def test_accelerates_shares_are_those_of_torch(options: dict[str, bool], process: int) -> None:
    from accelerate.data_loader import prepare_data_loader
    from feedline.torch import DataLoader, adopt
    from torch.utils.data import DataLoader as Theirs
    from torch.utils.data import IterableDataset, TensorDataset

    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.arange(35))

    stream = options.get("stream", False)
    further = {key: value for key, value in options.items() if key != "stream"}
    data = Stream() if stream else TensorDataset(torch.arange(35))

    def prepare(kind: Any, **ours: Any) -> Any:
        torch.manual_seed(5)
        loader = kind(data, batch_size=4, shuffle=not stream, **ours)
        made = prepare_data_loader(loader, num_processes=2, process_index=process, **further)
        return adopt(made, loader) if ours else made

    def numbers(batches: Any) -> list[Any]:
        return [batch.tolist() if stream else batch[0].tolist() for batch in batches]

    mine = {
        "num_workers": 0 if stream else 2,
        "executor": "auto" if stream else "threads",
        "random": "worker",
    }
    theirs, ours = prepare(Theirs), prepare(DataLoader, **mine)
    assert type(ours.base_dataloader) is DataLoader
    assert ours.base_dataloader.random == "worker"
    epochs = [numbers(theirs) for _ in range(2)]
    assert [numbers(ours) for _ in range(2)] == epochs

    broken = prepare(DataLoader, **mine)
    batches = iter(broken)
    assert numbers(next(batches) for _ in range(2)) == epochs[0][:2]
    state = broken.state_dict()
    resumed = prepare(DataLoader, **mine)
    resumed.load_state_dict(state)
    assert numbers(resumed) == epochs[0][2:]


def dispatched(rank: int, port: int, folder: Path) -> None:
    """One of two processes that accelerate hands batches of the first one to, stopped and resumed."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from feedline.torch import DataLoader, adopt
    from torch.utils.data import IterableDataset, TensorDataset

    class Own(IterableDataset[torch.Tensor]):
        """Keeps its place itself: a state of it cannot be corrected afterwards."""

        at = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            while self.at < 30:
                self.at += 1
                yield torch.tensor([self.at])
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    def prepare(split: bool, stream: bool) -> tuple[Any, Any]:
        torch.manual_seed(4)
        dispatch = DataLoaderConfiguration(dispatch_batches=True, split_batches=split)
        accelerator = Accelerator(cpu=True, dataloader_config=dispatch)
        data = Own() if stream else TensorDataset(torch.arange(30)[:, None])
        loader: Any = DataLoader(data, batch_size=4, shuffle=not stream, num_workers=1)
        made = accelerator.prepare(loader)
        return accelerator, adopt(made, loader)

    def numbers(batches: Any) -> list[Any]:
        return [batch[0].tolist() if isinstance(batch, list) else batch.tolist() for batch in batches]

    for split, stream in ((False, False), (False, True), (True, False)):
        _, made = prepare(split, stream)
        assert type(made.base_dataloader) is DataLoader
        whole = numbers(made)
        for stop in (1, len(whole) - 1, len(whole)):
            accelerator, made = prepare(split, stream)
            batches = iter(made)
            assert numbers(next(batches) for _ in range(stop)) == whole[:stop]
            checkpoint = str(folder / f"{split}-{stream}-{stop}")
            accelerator.save_state(checkpoint)
            accelerator.wait_for_everyone()
            accelerator, made = prepare(split, stream)
            accelerator.load_state(checkpoint)
            after = numbers(made)
            # accelerate fills the last batch with samples of the first one since it began.
            rest = whole[stop:]
            assert len(after) == (len(rest) or len(whole)), (split, stream, stop)
            assert after[: len(rest) - 1] == rest[:-1] if rest else True, (split, stream, stop)
            assert [len(batch) for batch in after[-1:]] == [len(batch) for batch in (rest or whole)[-1:]]
    accelerator.end_training()


def test_accelerate_resumes_what_it_dispatches(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs = [Run(tmp_path / f"{rank}.txt", dispatched, rank, port, tmp_path) for rank in (0, 1)]
    for run in runs:
        run.ends_with(0)


def prepared(which: str) -> None:
    from accelerate import Accelerator, skip_first_batches
    from feedline.torch import DataLoader, adopt, use_in_accelerate
    from torch.utils.data import DataLoader as Theirs
    from torch.utils.data import IterableDataset, TensorDataset

    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.arange(40))

    if which == "use":
        use_in_accelerate(snapshot_every_n_steps=3)
    accelerator = Accelerator(cpu=True)

    def begin(kind: Any, data: Any, **ours: Any) -> list[Any]:
        torch.manual_seed(6)
        loader = kind(data, batch_size=4, shuffle=not isinstance(data, Stream), num_workers=1, **ours)
        made = accelerator.prepare(loader)
        made = adopt(made, loader) if which == "adopt" else made
        skipped = skip_first_batches(made, 3)
        skipped = adopt(skipped, made) if which == "adopt" else skipped
        plain = skip_first_batches(loader, 3)
        return [made, skipped, adopt(plain, loader) if which == "adopt" else plain]

    def numbers(batches: Any) -> list[Any]:
        return [str(batch) for batch in batches]

    for data in (TensorDataset(torch.arange(40)), Stream()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = begin(DataLoader, data, random="worker")
            gc.collect()
            bases = [getattr(made, "base_dataloader", made) for made in ours]
            assert [type(base) for base in bases] == [DataLoader] * 3
            assert {base.random for base in bases} == {"worker"}
            batches = [numbers(made) for made in ours]
        if which == "use":
            assert type(begin(Theirs, data)[1].base_dataloader) is DataLoader
            assert ours[1].base_dataloader.snapshot_every_n_steps == 1
            assert begin(Theirs, data)[1].base_dataloader.snapshot_every_n_steps == 3
        else:
            assert batches == [numbers(made) for made in begin(Theirs, data)]
        assert [len(found) for found in batches] == [10, 7, 7]


@pytest.mark.parametrize("which", ["adopt", "use"])
def test_all_that_accelerate_makes_of_a_loader_is_ours(which: str, tmp_path: Path) -> None:
    Run(tmp_path / "output.txt", prepared, which).ends_with(0)


def trained(which: str, way: str, folder: Path) -> None:
    """A model with dropout that draws between the orders, stopped within its second epoch of three."""
    import accelerate
    from accelerate.utils import DataLoaderConfiguration
    from feedline.torch import DataLoader, adopt, use_in_accelerate
    from torch.utils.data import TensorDataset

    if which == "use":
        use_in_accelerate()

    def run(epoch: int = 0, skipped: int = 0) -> list[Any]:
        torch.manual_seed(7)
        seedable = DataLoaderConfiguration(use_seedable_sampler=way != "state, no generator", data_seed=3)
        # With no types to synchronise, accelerate gives the sampler no generator.
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=seedable, rng_types=[])
        loader: Any = DataLoader(TensorDataset(torch.arange(20.0)), batch_size=4, shuffle=True)
        model, train = accelerator.prepare(torch.nn.Dropout(), loader)
        train = adopt(train, loader) if which == "adopt" else train
        if epoch:
            accelerator.load_state(str(folder / "saved"))
        seen = []
        for number in range(epoch, 3):
            active = train
            if way != "state, no generator":
                train.set_epoch(number)
            if way == "skip" and number == epoch and skipped:
                active = accelerate.skip_first_batches(train, skipped)
            elif way == "accelerator's skip" and number == epoch and skipped:
                active = accelerator.skip_first_batches(train, skipped)
            if active is not train:
                active.set_epoch(number)
                active = adopt(active, train) if which == "adopt" else active
            for step, (batch,) in enumerate(active):
                seen.append((batch.tolist(), model(batch + 1).tolist()))
                if not epoch and number == 1 and step == 1:
                    accelerator.save_state(str(folder / "saved"))
        return seen

    whole = run()
    rest = run(1, 2)
    assert len(whole) == 15
    assert [batch for batch, _ in rest] == [batch for batch, _ in whole[-8:]]
    if "skip" not in way:
        assert rest == whole[-8:]


@pytest.mark.parametrize("which", ["adopt", "use"])
@pytest.mark.parametrize("way", ["skip", "accelerator's skip", "state", "state, no generator"])
def test_a_run_with_accelerate_resumes_as_it_would_have_gone_on(way: str, which: str, tmp_path: Path) -> None:
    Run(tmp_path / "output.txt", trained, which, way, tmp_path).ends_with(0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_loader_that_accelerate_replaced_is_warned_about_once() -> None:
    from accelerate import Accelerator
    from feedline.torch import DataLoader, accelerate, adopt

    accelerate._warn.cache_clear()
    accelerator = Accelerator(cpu=True)
    adopted = DataLoader(list(range(4)))
    adopt(accelerator.prepare(adopted), adopted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del adopted
        gc.collect()
        assert not caught
        for _ in range(2):
            assert list(accelerator.prepare(DataLoader(list(range(4)))))
        gc.collect()
    [warning] = caught
    assert "use_in_accelerate" in str(warning.message) and "adopt" in str(warning.message)


def test_a_class_of_its_own_is_not_adopted_for_another() -> None:
    from feedline.torch import DataLoader, adopt

    class Theirs(torch.utils.data.DataLoader[Any]):
        pass

    with pytest.raises(TypeError, match=r"class Ours.*Theirs, feedline\.torch\.DataLoader"):
        adopt(Theirs([1, 2]))
    theirs: Any = torch.utils.data.DataLoader([1, 2, 3], 2, drop_last=True)
    ours = adopt(theirs)
    assert type(ours) is DataLoader
    assert (ours.batch_size, ours.drop_last, ours.sampler) == (2, True, theirs.sampler)
    assert [batch.tolist() for batch in ours] == [[1, 2]]
