"""What a state says about later epochs, before anything was handed over, and to other programs."""

from __future__ import annotations

import json
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from comparison import EXECUTORS, WARNINGS, assert_same, build, numbers, seed_all, steps
from map_sets import Draws
from streams import IteratorWithState, Position, Sharded, WithState
from test_torch_state import CASES, DATA, CountingSampler, Remembering, through_a_file
from torch.utils.data import Dataset

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    pytest.mark.filterwarnings("ignore:neither the data set nor its iterator:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

#: How our loader and torchdata's run.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "inline": ({}, {}),
    "processes": (EXECUTORS["processes"], {"num_workers": 2, "multiprocessing_context": "fork"}),
}


def settings(loader: str, way: str) -> dict[str, Any]:
    return WAYS[way][loader == "stateful"]


def made_of(case: tuple[Callable[[], Any], dict[str, Any]], loader: str, way: str) -> Any:
    """A loader of a new data set, with a new sampler if one is named."""
    data, more = case
    more = {name: value() if callable(value) else value for name, value in more.items()}
    return build(loader, data(), batch_size=2, **settings(loader, way), **more)


def shuffled(loader: str, way: str = "inline", seed: int = 0, **more: Any) -> Any:
    seed_all(seed)
    return build(loader, DATA, **({"batch_size": 4, "shuffle": True} | settings(loader, way) | more))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("taken", [None, 0, 2, 6, 7])
def test_without_a_generator_later_epochs_follow_as_with_torchdatas(taken: int | None, way: str) -> None:
    """The program that resumes was seeded as the first one was; what else both draw makes no difference."""

    def run(loader: str) -> tuple[list[Any], list[Any]]:
        made = shuffled(loader, way)
        first = steps(iter(made))
        iterator = None if taken is None else iter(made)
        for _ in range(taken or 0):
            next(iterator, None)
        iterator = None if taken == 7 else iterator
        state = made.state_dict()
        state = through_a_file(state) if loader == "feedline" else state
        expected = []
        for number in range(3):
            random.random()
            torch.rand(number + 3)
            expected.append(numbers(steps(iter(made) if iterator is None else iterator)))
            iterator = None
        other = shuffled(loader, way)
        other.load_state_dict(state)
        resumed = []
        for _ in range(3):
            resumed.append(numbers(steps(iter(other))))
            torch.rand(1)
        assert numbers(first) not in resumed
        return resumed, expected

    resumed, expected = run("feedline")
    assert resumed == expected
    resumed, expected = run("stateful")
    assert resumed == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_state_changes_no_order_as_long_as_nobody_else_draws(way: str) -> None:
    def run(loader: str, **more: Any) -> list[Any]:
        made, seen = shuffled(loader, way, **more), []
        for _ in range(3):
            for batch in made:
                seen.append(batch)
                if loader == "feedline":
                    made.state_dict()
            seen.append(torch.rand(1) if len(seen) > 20 else None)
        return seen[:-1]

    ways = {} if way == "inline" else {"multiprocessing_context": "fork", "worker_init_fn": None}
    assert_same(run("feedline"), run("torch", **ways))


def test_seeding_anew_decides_the_order_after_a_state_too() -> None:
    def run(loader: str) -> list[Any]:
        made, seen = shuffled(loader), []
        for seed in (1, 2, 1, 1):
            torch.manual_seed(seed)
            seen += steps(iter(made), most=2)
            if loader == "feedline":
                made.state_dict()
            torch.rand(5)
        return seen

    assert_same(run("feedline"), run("torch"))


def test_what_samples_draw_in_later_epochs_follows_too() -> None:
    def loader() -> Any:
        seed_all(0)
        return build("feedline", Draws(9), batch_size=2, shuffle=True)

    made = loader()
    steps(iter(made), most=2)
    state = made.state_dict()
    torch.rand(7)
    expected = steps(iter(made))
    other = loader()
    other.load_state_dict(state)
    steps(iter(other))
    assert_same(steps(iter(other)), expected)


@pytest.mark.parametrize("name", ["shuffle", "random, replacement", "weighted", "subset", "stateful random"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_state_with_nothing_handed_over_keeps_the_permutation(begun: bool, name: str) -> None:
    def loader(seed: int) -> Any:
        seed_all(seed)
        return build("feedline", DATA, **CASES[name](torch.Generator().manual_seed(seed)))

    made = loader(7)
    iterator = iter(made) if begun else None
    state = made.state_dict()
    torch.rand(3)
    expected = steps(iterator if begun else iter(made))
    other = loader(99)
    other.load_state_dict(through_a_file(state))
    torch.rand(1)
    assert_same(steps(iter(other)), expected)


class Gated(Dataset[Any]):
    """One sample waits until a file is there."""

    def __init__(self, gate: Path, slow: int) -> None:
        self.gate, self.slow = gate, slow

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        while index == self.slow and not self.gate.exists():
            time.sleep(0.01)
        return index


def test_without_an_order_each_sample_comes_once_after_a_resume(tmp_path: Path) -> None:
    """The first batch is not there yet when the state is taken."""

    def loader(seed: int, slow: int, **more: Any) -> Any:
        seed_all(seed)
        return build("feedline", Gated(tmp_path / "open", slow), batch_size=4, shuffle=True, **more)

    ((slow, *_),) = numbers(steps(iter(loader(3, -1)), most=1))
    ways = {"in_order": False, **EXECUTORS["processes"]}
    made = loader(3, slow, **ways)
    iterator = iter(made)
    taken = [next(iterator) for _ in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = made.state_dict()
        made.state_dict()
    assert len([one for one in caught if "in_order=False" in str(one.message)]) == 1
    (tmp_path / "open").touch()
    other = loader(8, slow, **ways)
    other.load_state_dict(state)
    rest = steps(iter(other))
    assert sorted(number for batch in numbers([*taken, *rest]) for number in batch) == list(range(40))


class Counted:
    """A sampler whose iterator has a state."""

    def __iter__(self) -> Any:
        return Position(21, 0, 1)

    def __len__(self) -> int:
        return 21


#: Data sets and settings; torchdata's states of these are JSON.
PLAIN: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "map": (lambda: DATA, {}),
    "map with state": (Remembering, {}),
    "sampler with state": (lambda: DATA, {"sampler": CountingSampler}),
    "sampler whose iterator has a state": (lambda: DATA, {"sampler": Counted}),
    "stream": (lambda: Sharded(21), {}),
    "stream with state": (lambda: WithState(21), {}),
    "stream, iterator with state": (lambda: IteratorWithState(21), {}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PLAIN)
def test_states_are_json_where_torchdatas_are(name: str, way: str) -> None:
    def run(loader: str) -> tuple[list[Any], list[Any]]:
        made = made_of(PLAIN[name], loader, way)
        iterator = iter(made)
        for _ in range(3):
            next(iterator)
        text = json.dumps(made.state_dict())
        rest = numbers(steps(iterator))
        other = made_of(PLAIN[name], loader, way)
        other.load_state_dict(json.loads(text))
        return rest, numbers(steps(iter(other)))

    rest, resumed = run("feedline")
    assert resumed == rest
    assert run("stateful") == (rest, resumed)


@pytest.mark.parametrize("name", [*CASES, "own state"])
def test_a_state_is_json_at_every_moment(name: str) -> None:
    more = {"batch_size": 4} if name == "own state" else CASES[name](torch.Generator())
    if name == "stateful random":
        pytest.skip("its own state is a tensor")
    made = build("feedline", Remembering() if name == "own state" else DATA, **more)
    states = [made.state_dict()]
    iterator = iter(made)
    states.append(made.state_dict())
    next(iterator)
    states.append(made.state_dict())
    steps(iterator)
    states.append(made.state_dict())
    for state in states:
        other = build("feedline", Remembering() if name == "own state" else DATA, **more)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert sorted(other.state_dict()) == sorted(states[0])
        steps(iter(other))


@pytest.mark.parametrize("every", [0, None])
@pytest.mark.parametrize("way", WAYS)
def test_no_snapshots_are_taken_if_none_are_asked_for(way: str, every: int | None) -> None:
    def run(loader: str) -> tuple[list[Any], list[Any]]:
        more = {"batch_size": 2, "snapshot_every_n_steps": every, **settings(loader, way)}
        made = build(loader, IteratorWithState(21), **more)
        iterator = iter(made)
        for _ in range(5):
            next(iterator)
        state = made.state_dict()
        rest = numbers(steps(iterator))
        other = build(loader, IteratorWithState(21), **more)
        other.load_state_dict(state)
        return rest, numbers(steps(iter(other)))

    rest, resumed = run("feedline")
    assert resumed == rest
    assert run("stateful") == (rest, resumed)


def test_an_older_state_is_refused_with_what_to_do() -> None:
    state = {"feedline": 1, "kind": "map", "begun": False}
    with pytest.raises(ValueError, match=r"has version 1.*resume with the feedline that wrote it"):
        build("feedline", DATA).load_state_dict(state)


#: What is checkpointed: a map, shuffled; one with a state; streams with and without one.
CHECKPOINTED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "shuffled map": (lambda: DATA, {"shuffle": True}),
    "map with state": (Remembering, {}),
    "sampler with state": (lambda: DATA, {"sampler": CountingSampler}),
    "stream": (lambda: Sharded(21), {}),
    "stream with state": (lambda: WithState(21), {}),
    "stream, iterator with state": (lambda: IteratorWithState(21), {}),
}
MOMENTS = ["fresh", "begun", "in the middle", "over"]


def at_moment(moment: str, made: Any) -> Any:
    """The loader's iterator then, if there is one."""
    if moment == "fresh":
        return None
    iterator = iter(made)
    if moment == "in the middle":
        steps(iterator, most=3)
    if moment == "over":
        steps(iterator)
        return None
    return iterator


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_torchs_distributed_checkpoint_saves_and_loads_states(name: str, way: str, tmp_path: Path) -> None:
    """Of any moment into a loader at any moment: it reads into the structure of the present state."""

    def loader(seed: int) -> Any:
        seed_all(seed)
        return made_of(CHECKPOINTED[name], "feedline", way)

    for number, moment in enumerate(MOMENTS):
        made = loader(3)
        iterator = at_moment(moment, made)
        dcp.save({"loader": made, "step": number}, checkpoint_id=tmp_path / moment)
        expected = numbers(steps(iter(made) if iterator is None else iterator))
        other = loader(8)
        held = at_moment(MOMENTS[(number + 2) % 4], other)
        for present in (other, loader(9)):
            loaded = {"loader": present, "step": -1}
            dcp.load(loaded, checkpoint_id=tmp_path / moment)
            assert loaded["step"] == number
            assert numbers(steps(iter(present))) == expected
        del held


@pytest.mark.filterwarnings("ignore")
def test_lightning_without_a_generator_gets_the_later_epochs(tmp_path: Path) -> None:
    """A model with dropout draws between the orders, and Lightning does not restore torch's generator."""
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dropout = torch.nn.Linear(4, 1), torch.nn.Dropout()
            self.seen: list[Any] = []

        def training_step(self, batch: Any, step: int) -> Any:
            self.seen.append(batch[0].tolist())
            if self.current_epoch == 1 and step == 2 and not self.trainer.ckpt_path:
                self.trainer.save_checkpoint(tmp_path / "checkpoint")
            return self.dropout(self.layer(batch[1].flatten(1))).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters())

    def run(loader: str, path: Path | None = None) -> list[Any]:
        model, made = Model(), shuffled(loader)
        quiet = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", **quiet)
        trainer.fit(model, made, ckpt_path=path, weights_only=False)
        return model.seen

    for loader in ("stateful", "feedline"):
        whole = run(loader)
        rest = run(loader, tmp_path / "checkpoint")
        assert len(rest) >= 12 and whole[-len(rest) :] == rest


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("states", [1, 2])
@pytest.mark.parametrize("taken", [0, 2])
def test_two_loaders_draw_orders_of_their_own_also_after_a_resume(taken: int, states: int, way: str) -> None:
    """Nobody draws between their states."""

    def pair() -> list[Any]:
        seed_all(0)
        more = {"batch_size": 4, "shuffle": True, **settings("feedline", way)}
        return [build("feedline", DATA, **more) for _ in range(2)]

    def rounds(made: list[Any], begun: list[Any]) -> list[Any]:
        seen = [[numbers(steps(iterator)) for iterator in begun]] if begun else []
        return [*seen, *([numbers(steps(iter(one))) for one in made] for _ in range(3))]

    made = pair()
    begun = [iter(one) for one in made] if taken else []
    for iterator in begun:
        steps(iterator, most=taken)
    kept = [one.state_dict() for one in made[:states]]
    expected = rounds(made, begun)
    orders = [str(order) for epoch in expected for order in epoch]
    assert len(set(orders)) == len(orders)
    if states == 1:
        return
    other = pair()
    for one, state in zip(other, kept, strict=True):
        one.load_state_dict(through_a_file(state))
    torch.rand(3)
    assert rounds(other, []) == expected[:3]


class Drawing:
    """A sampler with a state, which draws its order from the global generators."""

    def __iter__(self) -> Any:
        random.random()
        np.random.rand()  # noqa: NPY002
        yield from torch.randperm(8).tolist()

    def __len__(self) -> int:
        return 8

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("taken", [0, 5])
def test_looking_for_a_samplers_end_draws_nothing_from_the_program(taken: int) -> None:
    made = build("feedline", DATA, batch_size=2, sampler=Drawing())
    steps(iter(made), most=taken)
    state = made.state_dict()
    other = build("feedline", DATA, batch_size=2, sampler=Drawing())
    other.load_state_dict(state)
    seed_all(5)
    iterator = iter(other)
    drawn = random.random(), np.random.rand()  # noqa: NPY002
    seed_all(5)
    assert drawn == (random.random(), np.random.rand())  # noqa: NPY002
    del iterator
