"""Resume: exact after any batch, refused where it makes no sense."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import Array, until
from feedline import Loader
from feedline import transforms as T

CHAIN = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]


def make(photos: Path, **changes: Any) -> Loader:
    options: dict[str, Any] = {"transforms": CHAIN, "batch_size": 4, "shuffle": True, "seed": 5}
    return Loader(photos, **{**options, **changes})


def stream(loader: Loader, count: int) -> list[tuple[int, int, int]]:
    """The next `count` batches, over the ends of epochs."""
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        for batch in loader:
            found.append((batch.epoch, batch.number, batch.hash()))
            if len(found) == count:
                break
    return found


def test_resume_at_every_step(photos: Path) -> None:
    expected = stream(make(photos), 24)
    loader = make(photos)
    states = [loader.state_dict()]
    for _ in range(2):
        for _ in loader:
            states.append(loader.state_dict())
    assert len(states) == 17
    for step, state in enumerate(states):
        resumed = make(photos, num_workers=step % 4)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert stream(resumed, 6) == expected[step : step + 6], step
        assert len(json.dumps(state)) < 1024


def test_after_the_last_batch_comes_the_next_epoch(photos: Path) -> None:
    loader = make(photos)
    for _ in loader:
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    resumed = make(photos)
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    assert (batch.epoch, batch.number) == (1, 0)


def test_a_state_counts_what_was_handed_over(photos: Path) -> None:
    loader = make(photos, num_workers=4, prefetch_factor=4)
    epoch = iter(loader)
    next(epoch)
    until(lambda: loader.stats()["queue"]["ready"])
    assert loader.state_dict()["batch"] == 1


def test_going_back_in_the_same_loader(photos: Path) -> None:
    loader = make(photos)
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    rest = [batch.hash() for batch in epoch]
    loader.load_state_dict(state)
    assert [batch.hash() for batch in loader] == rest
    assert next(iter(loader)).epoch == 1


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 3), (3, 4)])
def test_resume_on_another_number_of_ranks(arrays: tuple[Array, Array], before: int, after: int) -> None:
    def ranks(world: int) -> list[Loader]:
        return [
            Loader(arrays, batch_size=12 // world, rank=r, world_size=world, shuffle=True)
            for r in range(world)
        ]

    def labels(loaders: list[Loader]) -> list[list[int]]:
        return [np.concatenate([b[1] for b in parts]).tolist() for parts in zip(*loaders, strict=True)]

    whole = labels(ranks(1))
    old = ranks(before)
    for parts in zip(*old, strict=True):
        if parts[0].number == 2:
            break
    states = [loader.state_dict() for loader in old]
    assert all(state == states[0] for state in states)
    new = ranks(after)
    for loader in new:
        loader.load_state_dict(states[0])
    assert labels(new) == whole[3:]


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(state: dict[str, Any]) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            state = state[parent]
        state[name] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (change("feedline_state", 1), "version 1"),
        (change("batch", 8), "batch 8, an epoch has 8"),
        (change("batch", -1), "no state of feedline"),
        (change("batch", "3"), "no state of feedline"),
        (change("batch", 1.5), "no state of feedline"),
        (change("epoch", None), "no state of feedline"),
        (change("epoch", 2**64), "no state of feedline"),
        (change("identity", {}), "no state of feedline.*data"),
        (change("identity.extra", 1), "unknown field `extra`"),
        (change("surprise", 1), "unknown field `surprise`"),
        (change("skipped", [[0, 30]]), "sample 30 of source 0"),
        (change("skipped", [[9, 0]]), "sample 0 of source 9"),
        (change("delivered_ahead", [0]), "must name later batches"),
        (change("delivered_ahead", [2, 2]), "must name later batches"),
        (change("epoch", 2**63), "beyond any real run"),
        (change("epoch", float("nan")), "no state of feedline"),
        (change("epoch", b"x"), "no state of feedline"),
    ],
)
def test_garbage_is_refused(photos: Path, spoil: Callable[[dict[str, Any]], None], reason: str) -> None:
    loader = make(photos)
    next(iter(loader))
    state = copy.deepcopy(loader.state_dict())
    spoil(state)
    with pytest.raises(feedline.StateError, match=f"cannot resume: .*{reason}"):
        loader.load_state_dict(state)
    assert loader.state_dict()["batch"] == 1


@pytest.mark.parametrize("garbage", [{}, [], "x", None, 3])
def test_other_things_are_refused(photos: Path, garbage: Any) -> None:
    with pytest.raises(feedline.StateError, match="no state of feedline"):
        make(photos).load_state_dict(garbage)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": 6}, "seed = 5, this loader has seed = 6"),
        ({"batch_size": 5}, "global batch .* of 4, this loader has 5"),
        (
            {"transforms": [T.RandomResizedCrop(17), *CHAIN[1:]]},
            r"pixels are made differently: transforms\[0\] RandomResizedCrop.size: "
            r"\[16,16\] in the state, \[17,17\] here$",
        ),
        (
            {"transforms": [T.RandomResizedCrop(16, scale=(0.5, 1.0))]},
            r"transforms\[0\] RandomResizedCrop.scale: \[0.08,1.0\] in the state, \[0.5,1.0\] here; "
            r"transforms\[1\]: RandomHorizontalFlip\(p=0.5\) in the state, nothing here$",
        ),
        (
            {"transforms": [CHAIN[0], T.RandomVerticalFlip(), CHAIN[1]]},
            r"differently: transforms\[1\]: nothing in the state, RandomVerticalFlip\(p=0.5\) here$",
        ),
        ({"layout": "HWC"}, 'pixels are made differently: layout: "CHW" in the state, "HWC" here$'),
        ({"decode": {"mode": "gray"}}, 'decode.mode: "rgb" in the state, "gray" here$'),
        ({"cache": {"hold": "decoded"}}, "decode.exact: false in the state, true here$"),
        ({"shuffle": False}, "order is made differently: shuffle: true in the state, false here$"),
        ({"subset": ":29"}, "differently: subset: nothing in the state, .*29.* here$"),
        ({"last_batch": "pad"}, 'last_batch: "short" in the state, "pad" here$'),
        ({"on_error": "skip"}, 'on_error is not the same: "raise" in the state, "skip" here$'),
    ],
)
def test_a_state_of_another_loader_is_refused(photos: Path, changes: dict[str, Any], reason: str) -> None:
    state = make(photos).state_dict()
    with pytest.raises(feedline.StateError, match=reason):
        make(photos, **changes).load_state_dict(state)


def test_a_state_that_decodes_nothing_is_refused_by_one_that_does(photos: Path) -> None:
    state = make(photos, transforms=[], decode={"mode": "bytes"}).state_dict()
    with pytest.raises(feedline.StateError, match=r'decode.mode: "bytes" in the state, "rgb" here'):
        make(photos, transforms=[T.Resize(8)]).load_state_dict(state)


def test_a_refusal_names_functions_and_their_neighbours(photos: Path) -> None:
    def darker(image: Array) -> Array:
        return image // 2

    options: dict[str, Any] = {"num_workers": 0, "transforms": [*CHAIN, identity]}
    state = make(photos, **options).state_dict()
    with pytest.raises(
        feedline.StateError, match=r"transforms\[2\]: .*identity.* in the state, .*darker.* here$"
    ):
        make(photos, **{**options, "transforms": [*CHAIN, darker]}).load_state_dict(state)
    with pytest.raises(feedline.StateError, match=r"RandomResizedCrop.size: \[16,16\] in the state"):
        make(
            photos, **{**options, "transforms": [T.RandomResizedCrop(8), CHAIN[1], identity]}
        ).load_state_dict(state)
    with pytest.raises(feedline.StateError, match=r'layout: "CHW" in the state, "channels_last" here$'):
        make(photos, **options, layout="channels_last").load_state_dict(state)


@pytest.mark.parametrize(
    "described", [None, 3, [], {"pixels": "x\n" * 10_000}, {"pixels": {"transforms": 1}}]
)
def test_what_a_state_says_of_itself_is_not_believed(photos: Path, described: Any) -> None:
    state = copy.deepcopy(make(photos).state_dict())
    state["identity"]["described"] = described
    if isinstance(described, dict):
        make(photos).load_state_dict(state)
    with pytest.raises(feedline.StateError, match="cannot resume: ") as refused:
        make(photos, layout="HWC").load_state_dict(state)
    assert len(str(refused.value)) < 1000 and "\n" not in str(refused.value)


def test_a_state_of_a_later_version_is_named_whatever_it_holds(photos: Path) -> None:
    with pytest.raises(feedline.StateError, match="the state has version 99, this feedline reads version"):
        make(photos).load_state_dict({"feedline_state": 99, "new": [1]})


def test_a_long_chain_makes_no_long_state(photos: Path) -> None:
    chain = [T.ColorJitter(0.1, 0.2, 0.3, 0.1), T.RandomAffine(3, (0.1, 0.1))] * 50 + CHAIN
    state = make(photos, transforms=chain).state_dict()
    assert len(json.dumps(state)) < 4096
    with pytest.raises(feedline.StateError, match="pixels are made differently"):
        make(photos, transforms=chain[1:]).load_state_dict(state)


def test_a_state_of_other_data_is_refused(photos: Path, arrays: tuple[Array, Array]) -> None:
    state = make(photos / "ant").state_dict()
    with pytest.raises(feedline.StateError, match="data set is not the same"):
        make(photos / "bee").load_state_dict(state)
    other = arrays[0].copy()
    other[50] ^= 1
    with pytest.raises(feedline.StateError, match="data set is not the same"):
        Loader((other, arrays[1])).load_state_dict(Loader(arrays).state_dict())


def test_what_does_not_matter_may_change(photos: Path) -> None:
    state = make(photos).state_dict()
    for changes in (
        {"num_workers": 0},
        {"memory": "300MB"},
        {"prefetch_factor": 5},
        {"cache": "memory"},
        {"output": "torch"},
        {
            "transforms": [
                T.RandomResizedCrop([16, 16], (0.08, 1.0)),
                {"op": "RandomHorizontalFlip", "p": 0.5},
            ]
        },
    ):
        make(photos, **changes).load_state_dict(state)


def test_a_state_takes_no_longer_for_more_samples() -> None:
    def cost(samples: int) -> float:
        """Seconds of the processor that a state takes."""
        loader = Loader(np.arange(samples), batch_size=4, shuffle=True)
        times = []
        for _ in range(1000):
            began = time.thread_time()
            loader.state_dict()
            times.append(time.thread_time() - began)
        return min(times)

    assert cost(1_000_000) < 10 * cost(100)


def test_resume_with_batches_out_of_order(photos: Path) -> None:
    expected = sorted(h for _, _, h in stream(make(photos), 8))
    loader = make(photos, in_order=False, num_workers=4)
    found = []
    epoch = iter(loader)
    for _ in range(4):
        found.append(next(epoch).hash())
    resumed = make(photos, in_order=False, num_workers=4)
    resumed.load_state_dict(loader.state_dict())
    found += [batch.hash() for batch in resumed]
    assert sorted(found) == expected


def identity(image: Array) -> Array:
    return image


@pytest.mark.parametrize("code", [False, True])
def test_no_seed_is_a_fresh_one_that_the_state_keeps(photos: Path, code: bool) -> None:
    options: dict[str, Any] = {"seed": None, "num_workers": 0}
    if code:
        options["transforms"] = [*CHAIN, identity]
    one, two = make(photos, **options), make(photos, **options)
    assert one.seed != two.seed and 0 not in (one.seed, two.seed)
    assert one.spec["seed"] == one.seed and f"seed {one.seed} (drawn)" in repr(one)
    assert make(photos, **{**options, "seed": 7}).seed == 7
    seed = one.seed
    first = stream(one, 11)
    # The same number gives the same batches: nothing else was drawn.
    assert stream(make(photos, **{**options, "seed": seed}), 11) == first
    assert stream(two, 11) != first
    one.set_epoch(0)
    stream(one, 3)
    state = json.loads(json.dumps(one.state_dict()))
    assert state["identity"]["seed"] == seed
    # Whatever it has done before, a loader that drew its seed takes the state's.
    stale = iter(two)
    next(stale)
    two.load_state_dict(state)
    assert two.seed == seed and stream(two, 8) == first[3:]
    with pytest.raises(feedline.Error):
        next(stale)
    # It stays what it was if the state does not fit; a seed that was given is never changed.
    three = make(photos, **{**options, "batch_size": 3})
    kept = three.seed
    with pytest.raises(feedline.StateError, match="global batch"):
        three.load_state_dict(state)
    assert three.seed == kept and len(list(three)) == 10
    with pytest.raises(feedline.StateError, match="seed = 5"):
        make(photos, **{**options, "seed": 5}).load_state_dict(state)
    again = make(photos, **options)
    again.load_state_dict(two.state_dict())
    assert again.seed == seed
    again.load_state_dict(make(photos, **{**options, "seed": 7}).state_dict())
    assert again.seed == 7


@pytest.mark.parametrize("code", [False, True])
def test_ranks_need_one_seed(photos: Path, code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chain: list[Any] = [*CHAIN, identity] if code else CHAIN
    with pytest.raises(feedline.SpecError, match=r"seed: .*each of the 2 ranks.*the same number"):
        make(photos, transforms=chain, seed=None, rank=1, world_size=2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(feedline.SpecError, match="each of the 3 ranks"):
        make(photos, transforms=chain, seed=None)
    assert make(photos, transforms=chain, seed=3).seed == 3


def test_descriptions_without_a_seed(photos: Path, tmp_path: Path) -> None:
    described = {"source": str(photos), "shuffle": True, "seed": None}
    assert Loader.from_spec(described).seed not in (0, Loader.from_spec(described).seed)
    path = tmp_path / "pipeline.json"
    path.write_text(json.dumps(described))
    # A file means the same for the command, which has to repeat its runs.
    with pytest.raises(feedline.SpecError, match=r"seed: is null.*Python draws"):
        Loader.from_spec(path)
    path.write_text(json.dumps({"source": str(photos), "shuffle": True}))
    assert Loader.from_spec(path).seed == 0 and Loader.from_spec(path, seed=None).seed != 0
    loader = Loader(photos, shuffle=True, seed=None)
    assert Loader.from_spec(loader.spec).seed == loader.seed


def test_a_closed_loader_takes_no_state(photos: Path) -> None:
    with Loader(photos, shuffle=True, seed=None) as loader:
        state = loader.state_dict()
    other = Loader(photos, shuffle=True, seed=None)
    other.close()
    with pytest.raises(feedline.ClosedError):
        other.load_state_dict(state)
    assert other.seed != loader.seed
