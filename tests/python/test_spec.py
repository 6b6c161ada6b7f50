"""Descriptions: the same from a file, from text, from data and from arguments; mistakes named."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import Array, picture
from feedline import Loader
from feedline import transforms as T
from PIL import Image

PIPELINE = Path(__file__).with_name("pipeline.toml")

ARGUMENTS: dict[str, Any] = {
    "source": {"kind": "manifest", "path": Path("train.csv"), "label_columns": ["label"], "root": "photos"},
    "transforms": [
        T.RandomResizedCrop(224, scale=(0.25, 1.0)),
        T.RandomHorizontalFlip(0.25),
        T.ToDtype(np.float32, scale=True),
        T.Normalize([0.5], [0.25]),
    ],
    "batch_size": np.int64(32),
    "shuffle": True,
    "seed": 7,
    "subset": slice(0, 1000, 2),
    "num_samples": 400,
    "last_batch": "pad",
    "rank": 1,
    "world_size": 4,
    "layout": "channels_last",
    "num_workers": 3,
    "prefetch_factor": 2,
    "memory": "2GB",
    "cache": {"hold": "decoded", "limit": 500_000_000, "required": False},
    "on_error": "skip",
    "max_failures": 10,
    "quarantine": Path("bad.jsonl"),
    "decode": {"mode": "gray", "exif_orientation": True, "max_pixels": 50_000_000, "exact": True},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what pipeline.toml names, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("L", (4, 4)).save("photos/a.png")
    Path("train.csv").write_text("path,label\n" + "a.png,1\n" * 1000)
    shutil.copy(PIPELINE, "pipeline.toml")
    return tmp_path


def test_file_text_data_and_arguments_describe_the_same(here: Path) -> None:
    given = Loader(**ARGUMENTS).spec
    assert Loader.from_spec(Path("pipeline.toml")).spec == given
    assert Loader.from_spec("pipeline.toml").spec == given
    assert Loader.from_spec(PIPELINE.read_text()).spec == given
    assert Loader.from_spec(given).spec == given
    Path("copy.json").write_text(json.dumps(given))
    assert Loader.from_spec("copy.json").spec == given
    hashes = [batch.hash() for batch in Loader.from_spec("pipeline.toml")]
    assert hashes == [batch.hash() for batch in Loader(**ARGUMENTS)] and len(hashes) == 4


def test_paths_in_a_file_are_relative_to_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [batch.hash() for batch in Loader.from_spec("pipeline.toml")]
    monkeypatch.chdir("/")
    assert [batch.hash() for batch in Loader.from_spec(here / "pipeline.toml")] == hashes


def test_changes_to_a_description(here: Path) -> None:
    loader = Loader.from_spec("pipeline.toml", batch_size=8, drop_last=True, output="torch")
    assert loader.spec["batch_size"] == 8 and loader.spec["last_batch"] == "drop"


def test_arrays_for_a_description(arrays: tuple[Array, Array]) -> None:
    loader = Loader(arrays, batch_size=10)
    assert loader.spec == {"source": {"kind": "arrays"}, "batch_size": 10}
    again = Loader.from_spec(loader.spec, source=arrays)
    assert [b.hash() for b in again] == [b.hash() for b in loader]
    with pytest.raises(feedline.SourceError, match="live in a program's memory"):
        Loader.from_spec(loader.spec)


def test_only_differences_from_the_defaults_are_written(photos: Path) -> None:
    assert Loader(photos).spec == {"source": str(photos)}


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"batch_size": 0}, "batch_size", "batch_size = 0: .*at least 1"),
        ({"batch_size": 2.5}, "batch_size", "batch_size = 2.5"),
        ({"batch_size": "4"}, "batch_size", 'batch_size = "4"'),
        ({"shuffle": 1}, "shuffle", "true or false"),
        ({"seed": -1}, "seed", "seed = -1"),
        ({"num_workers": 5000}, "num_workers", "0 to 1024"),
        ({"num_workers": "many"}, "num_workers", '"auto"'),
        ({"memory": "lots"}, "memory", 'memory = "lots"'),
        ({"cache": "disk"}, "cache", '"memory"'),
        ({"cache": {"hold": "decode"}}, "cache.hold", 'did you mean "decoded"'),
        ({"cache": {"lmit": 3}}, "cache.lmit", "did you mean limit"),
        ({"on_error": "ignore"}, "on_error", '"raise", "skip"'),
        ({"layout": "chw"}, "layout", 'did you mean "CHW"'),
        ({"decode": {"mode": "grey"}}, "decode.mode", 'did you mean "gray"'),
        ({"rank": 3, "world_size": 2}, "rank", "0 to 1"),
        ({"rank": 1}, "world_size", "both or none"),
        ({"weights": [1, -1]}, "weights", "at least 0"),
        ({"weights": [1.0, float("nan")]}, "weights[1]", "finite"),
        ({"weights": np.array([1.0, np.inf])}, "weights", "finite"),
        ({"weights": [1.0, 2.0]}, "weights", "30"),
        ({"subset": [99]}, "subset", "99"),
        ({"subset": "all"}, "subset", "a slice such as"),
        ({"subset": slice(30, None)}, "subset", "no samples"),
        ({"drop_last": True, "last_batch": "pad"}, "drop_last", "contradicts"),
        ({"max_failures": 3}, "max_failures", "on_error"),
        ({"quarantine": "q"}, "quarantine", "on_error"),
        ({"prefetch_factor": 0}, "prefetch_factor", "at least 1"),
        ({"output": "tensorflow"}, "output", '"numpy", "torch", "jax", "dlpack"'),
        ({"transforms": [T.CenterCrop(0)]}, "transforms[0].size", "size = .?0"),
        ({"transforms": [{"op": "CentreCrop", "size": 3}]}, "transforms[0].op", 'did you mean "?CenterCrop'),
        (
            {"transforms": [{"op": "CenterCrop", "size": 3, "sice": 3}]},
            "transforms[0].sice",
            "did you mean size",
        ),
        ({"transforms": [T.Normalize([0.5], [0])]}, "transforms[0].std", "zero"),
        ({"transforms": [T.ToDtype("complex64")]}, "transforms[0].dtype", "complex64"),
        ({"transforms": [object()]}, "transforms[0]", "has no place in a description"),
        ({"batch_size": 31, "drop_last": True}, None, "batch"),
    ],
)
def test_mistakes_are_named(photos: Path, options: dict[str, Any], key: str | None, message: str) -> None:
    with pytest.raises(feedline.SpecError, match=message) as caught:
        Loader(photos, **options)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, feedline.Error)
    if key is not None:
        assert caught.value.key == key
        assert str(caught.value).startswith(key)


@pytest.mark.parametrize(
    "source", [3, None, object(), [object()], {"kind": "folder", "path": "x"}, {"path": ""}, "", []]
)
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(feedline.SpecError, match="source"):
        Loader(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize = 3\nsource = 'x'", "did you mean batch_size"),
        ("source = ", "not valid TOML"),
        ('{"source": }', "not valid JSON"),
        ("photos", "neither the path of a .toml or .json file"),
    ],
)
def test_mistakes_in_text(text: str, message: str) -> None:
    with pytest.raises(feedline.SpecError, match=message):
        Loader.from_spec(text)


def test_a_missing_file_of_a_description() -> None:
    with pytest.raises(FileNotFoundError):
        Loader.from_spec("nowhere.toml")


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/bilder-\xff"
    os.makedirs(folder + b"/klasse-\xfe")
    name = folder + b"/klasse-\xfe/f\xfcnf.png"
    with open(name, "wb") as file:
        Image.new("RGB", (4, 4), (9, 9, 9)).save(file, "png")
    for source in (folder, os.fsdecode(folder), Path(os.fsdecode(folder)), {"kind": "flat", "path": folder}):
        loader = Loader(source)
        assert next(iter(loader))["image"].max() == 9
        assert [b.hash() for b in Loader.from_spec(loader.spec)] == [b.hash() for b in loader]
    quarantine = folder + b"/bad-\xff.jsonl"
    with open(folder + b"/klasse-\xfe/z\xff.png", "wb") as file:
        file.write(b"nothing")
    loader = Loader(folder, batch_size=2, on_error="skip", quarantine=quarantine)
    assert len(list(loader)) == 1
    entry = json.loads(Path(os.fsdecode(quarantine)).read_text())
    assert bytes(entry["path_bytes"]).endswith(b"z\xff.png")
    with pytest.raises(feedline.SampleError) as caught:
        list(Loader(folder, batch_size=2))
    assert caught.value.path is not None and os.fsencode(caught.value.path).endswith(b"z\xff.png")


def test_transforms_are_plain_descriptions() -> None:
    assert repr(T.RandomResizedCrop(224, ratio=(0.75, 4 / 3))) == "RandomResizedCrop(size=224)"
    assert repr(T.Normalize([0.5], [0.2])) == "Normalize(mean=[0.5], std=[0.2])"
    assert T.RandomCrop(3, padding=(1, 2)) == T.RandomCrop(3, padding=[1, 2])
    assert T.RandomHorizontalFlip() != T.RandomVerticalFlip()
    assert len({T.CenterCrop(3), T.CenterCrop(3), T.CenterCrop(4)}) == 2
    assert T.ToDtype("float32") == T.ToDtype(np.float32)
    with pytest.raises(AttributeError):
        T.CenterCrop(3).size = 4  # type: ignore[misc]


def test_transforms_have_torchvisions_signatures() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    for name in T.__all__:
        ours = getattr(T, name)
        if name in ("PerBatch", "Transform", "apply", "drawn", "drawn_mix"):
            continue
        theirs = list(inspect.signature(getattr(v2, name)).parameters.values())
        mine = list(inspect.signature(ours).parameters.values())
        # Images are the loader's own, and so is the knowledge where the labels are.
        dropped = ("inplace", "labels_getter")
        assert [p.name for p in mine] == [p.name for p in theirs if p.name not in dropped], name
        for own, other in zip(mine, theirs, strict=False):
            if name == "ToDtype" and own.name == "dtype":
                continue  # given as a name by default
            default = getattr(other.default, "value", other.default)
            assert own.default == default, (name, own.name)


def test_apply_agrees_with_the_loader(photos: Path) -> None:
    chain = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]
    loader = Loader(photos, chain, batch_size=30, seed=11)
    for epoch in range(2):
        (batch,) = loader
        for position in (0, 7, 29):
            for layout in ("CHW", "HWC", "channels_last"):
                made = T.apply(picture(position), chain, 11, epoch, position, layout)
                made = made.transpose(2, 0, 1) if layout == "HWC" else made
                np.testing.assert_array_equal(made, batch["image"][position])


def test_decode_image(photos: Path) -> None:
    path = sorted((photos / "bee").iterdir())[0]
    np.testing.assert_array_equal(feedline.decode_image(path), picture(10))
    np.testing.assert_array_equal(feedline.decode_image(path.read_bytes()), picture(10))
    assert feedline.decode_image(str(path), "gray").shape == (24, 32, 1)
    with pytest.raises(feedline.SampleError, match="cannot decode") as caught:
        feedline.decode_image(b"nothing")
    assert caught.value.stage == "decode"
    with pytest.raises(feedline.SpecError, match="mode"):
        feedline.decode_image(path, "grey")  # type: ignore[arg-type]
    with pytest.raises(feedline.SpecError, match="size"):
        T.apply(picture(0), [T.CenterCrop(0)])
