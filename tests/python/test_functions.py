"""What Python functions among the transforms get and give, and torchvision's ops in their place."""

from __future__ import annotations

import collections
import functools
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
import torch
from conftest import Array, picture
from feedline.transforms import (
    CenterCrop,
    Normalize,
    PerBatch,
    RandomHorizontalFlip,
    Resize,
    ToDtype,
)
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

EXECUTORS = ["inline", "threads", "processes"]
COUNT, HEIGHT, WIDTH = 6, 16, 20


def image(number: int) -> Array:
    return picture(number, HEIGHT, WIDTH)


def planar() -> Array:
    return np.stack([image(number).transpose(2, 0, 1) for number in range(COUNT)])


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image(number)).save(out, "PNG")
    return out.getvalue()


def is_image(value: Any) -> Any:
    """Marks the corner of what it was given, and fails on anything but [height, width, channels]."""
    assert type(value) is np.ndarray, type(value)
    assert value.shape == (HEIGHT, WIDTH, 3), value.shape
    marked = value.copy()
    marked[0, 0] = 7
    return marked


def same(value: Any) -> Any:
    return value


class Samples:
    """The same images in any form."""

    def __init__(self, form: Callable[[int], Any]) -> None:
        self.form = form

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return {"image": self.form(index), "label": index}


class Streamed:
    """The same as an iterable."""

    def __init__(self, form: Callable[[int], Any]) -> None:
        self.form = form

    def __iter__(self) -> Any:
        return iter([{"image": self.form(number), "label": number} for number in range(COUNT)])


def chw(number: int) -> Array:
    return image(number).transpose(2, 0, 1)


def tensor(number: int) -> Any:
    return torch.from_numpy(chw(number).copy())


def pillow(number: int) -> Any:
    return Image.fromarray(image(number))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sixteen")
    for number in range(COUNT):
        (root / f"{number}.png").write_bytes(png(number))
    return root


def sources(folder: Path) -> dict[str, Any]:
    """The same images on every path that there is."""
    np.save(folder.parent / "planes.npy", planar())
    np.save(folder.parent / "rows.npy", planar().transpose(0, 2, 3, 1))
    return {
        "folder": folder,
        "planes": {"image": planar()},
        "interleaved": {"image": planar().transpose(0, 2, 3, 1)},
        "a file of planes": folder.parent / "planes.npy",
        "a file of rows": folder.parent / "rows.npy",
        "a data set of planes": Samples(chw),
        "a data set of arrays": Samples(image),
        "a data set of bytes": Samples(png),
        "a data set of tensors": Samples(tensor),
        "a data set of Pillow's images": Samples(pillow),
        "a list": [image(number) for number in range(COUNT)],
        "an iterable": Streamed(chw),
    }


def first_field(batch: Any) -> Any:
    if isinstance(batch, np.ndarray | torch.Tensor):
        return batch
    return batch["image"] if isinstance(batch, dict) else batch[0]


def only(loader: feedline.Loader) -> Any:
    with loader:
        (batch,) = loader
        return first_field(batch)


CHAINS: dict[str, list[Any]] = {
    "alone": [is_image],
    "after a native op": [CenterCrop((HEIGHT, WIDTH)), is_image],
    "before a native op": [is_image, CenterCrop((HEIGHT, WIDTH))],
    "between native ops": [RandomHorizontalFlip(p=0), is_image, RandomHorizontalFlip(p=0)],
    "after a function": [same, is_image],
    "after a function that turns it": [lambda value: value.transpose(2, 0, 1), is_image],
    "before a function that turns it": [is_image, lambda value: value.transpose(2, 0, 1)],
    "before one that makes a tensor": [
        is_image,
        lambda value: torch.from_numpy(value.transpose(2, 0, 1).copy()),
    ],
}


@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_function_gets_height_width_channels_on_every_path(folder: Path, chain: str, layout: Any) -> None:
    wanted = np.stack([image(number) for number in range(COUNT)])
    wanted[:, 0, 0] = 7
    if layout != "HWC":
        wanted = wanted.transpose(0, 3, 1, 2)
    for name, source in sources(folder).items():
        got = only(feedline.Loader(source, CHAINS[chain], COUNT, layout=layout, num_workers=0))
        assert np.array_equal(got, wanted), (name, got.shape)
        if layout == "channels_last":
            assert got.transpose(0, 2, 3, 1).flags.c_contiguous, name


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_function_gets_the_same_in_every_executor(folder: Path, executor: Any) -> None:
    for name, source in sources(folder).items():
        loader = feedline.Loader(
            source, [is_image], COUNT, executor=executor, num_workers=1 - (executor == "inline")
        )
        assert only(loader).shape == (COUNT, 3, HEIGHT, WIDTH), name


def test_functions_after_conversions_get_the_elements_as_they_are(folder: Path) -> None:
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append((value.dtype.name, value.shape))
        return value

    ops = [look, ToDtype("float32", scale=True), look, Normalize([0.5], [0.5]), look]
    loader = feedline.Loader(folder, ops, COUNT, num_workers=0)
    assert only(loader).shape == (COUNT, 3, HEIGHT, WIDTH)
    shape = (HEIGHT, WIDTH, 3)
    assert seen[:3] == [("uint8", shape), ("float32", shape), ("float32", shape)]


def test_gray_images_have_a_channel(folder: Path) -> None:
    def gray(value: Any) -> Any:
        assert value.shape == (HEIGHT, WIDTH, 1), value.shape
        return value

    for source in (
        {"image": planar()[:, 0]},
        Samples(lambda number: image(number)[:, :, 0]),
        Samples(lambda number: pillow(number).convert("L")),
        Samples(lambda number: pillow(number).convert("1")),
        Samples(lambda number: pillow(number).convert("F")),
    ):
        assert only(feedline.Loader(source, [gray], COUNT, num_workers=0)).shape == (COUNT, 1, HEIGHT, WIDTH)
    loader = feedline.Loader(folder, [gray], COUNT, decode={"mode": "gray"}, num_workers=0)
    assert only(loader).shape == (COUNT, 1, HEIGHT, WIDTH)


def test_what_is_not_an_image_stays_as_it_is() -> None:
    for value in (np.arange(5.0), np.zeros((4, 6)), np.zeros((5, 6, 7)), np.float32(3), "text", b"bytes"):
        seen = []

        def look(given: Any, seen: list[Any] = seen) -> Any:
            seen.append(given)
            return given

        (batch,) = feedline.Loader(collections.deque([value]), [look], num_workers=0)
        assert type(seen[0]) is type(value) and np.array_equal(seen[0], value)
        assert np.array_equal(batch[0], value)
    tokens = torch.arange(5)
    (batch,) = feedline.Loader(collections.deque([tokens]), [lambda value: value.unsqueeze(0)], num_workers=0)
    assert batch.shape == (1, 1, 5)
    vectors = feedline.Loader({"x": planar()}, [lambda value: value.mean(axis=(0, 1))], COUNT, num_workers=0)
    assert only(vectors).shape == (COUNT, 3)
    volumes = feedline.Loader(
        collections.deque([np.zeros((5, 6, 7))]), [same], layout="channels_last", num_workers=0
    )
    with pytest.raises(feedline.SampleError, match=r"channels_last.*\[5, 6, 7\]"):
        next(iter(volumes))


def test_a_palette_of_pillow_is_shown_as_its_colours() -> None:
    seen = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    for mode, wanted in [("P", "RGB"), ("CMYK", "RGB"), ("LA", "RGBA")]:
        picture = pillow(1).convert(mode)
        for chain in ([look], [CenterCrop((HEIGHT, WIDTH)), look]):
            list(feedline.Loader(collections.deque([picture]), chain, num_workers=0))
            assert np.array_equal(seen[-1], np.asarray(picture.convert(wanted))), mode


def test_a_first_function_gets_the_pixels_of_every_format() -> None:
    seen = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    # Of height 3, so that the first axis could be channels.
    picture = pillow(1).crop((0, 0, 8, 3))
    for name in ("PNG", "BMP", "PPM", "GIF", "TIFF"):
        file = io.BytesIO()
        picture.save(file, name)
        data = bytearray(file.getvalue())
        if name == "BMP":
            data[2:6] = b"\0" * 4
        list(feedline.Loader(collections.deque([bytes(data)]), [look], num_workers=0))
        assert seen[-1].shape == (3, 8, 3), name
    list(feedline.Loader(collections.deque([picture]), [look], num_workers=0))
    assert np.array_equal(seen[-1], np.asarray(picture))


def test_bytes_are_kept_on_request(folder: Path) -> None:
    def length(value: Any) -> Any:
        assert type(value) is bytes
        return len(value)

    lengths = [len(png(number)) for number in range(COUNT)]
    for source in (folder, Samples(png)):
        loader = feedline.Loader(source, [length], COUNT, decode={"mode": "bytes"}, num_workers=0)
        assert only(loader).tolist() == lengths
        with pytest.raises(feedline.SpecError, match="no pixels"):
            feedline.Loader(source, [CenterCrop(4), same], decode={"mode": "bytes"})


def test_a_function_may_write_to_what_it_gets() -> None:
    def darken(value: Any) -> Any:
        value //= 2
        return value

    images = planar()
    for source in ({"image": images}, list(images.copy()), [tensor(number) for number in range(COUNT)]):
        loader = feedline.Loader(source, [darken], COUNT, num_workers=0)
        first, second = (first_field(next(iter(loader))).copy() for _ in range(2))
        assert np.array_equal(first, second) and np.array_equal(first, planar() // 2)
    assert np.array_equal(images, planar())


# What an op does to an image, by torchvision itself.
def expected(op: Any, form: str) -> Array:
    made = []
    for number in range(COUNT):
        given = {
            "tensor": tensor(number),
            "image": tv_tensors.Image(tensor(number)),
            "pil": pillow(number),
        }[form]
        result = op(given)
        made.append(
            np.asarray(result).transpose(2, 0, 1) if isinstance(result, Image.Image) else result.numpy()
        )
    return np.stack(made)


class OwnOp(v2.Transform):  # type: ignore[misc]
    """An op of the program's own, written as torchvision says."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        assert isinstance(inpt, tv_tensors.Image)
        return 255 - inpt


CHAIN = v2.Compose([v2.ToImage(), v2.Resize((8, 9)), v2.ToDtype(torch.float32, scale=True)])
OPS: dict[str, tuple[Any, str]] = {
    "v2 op": (v2.Resize((8, 9)), "image"),
    "v2 flip": (v2.RandomHorizontalFlip(p=1), "image"),
    "v2 Compose": (CHAIN, "image"),
    "v2 RandomApply": (v2.RandomApply([v2.RandomInvert(p=1)], p=1), "image"),
    "v2 ToPILImage": (v2.ToPILImage(), "image"),
    "v2 PILToTensor": (v2.PILToTensor(), "image"),
    "v2 of the program": (OwnOp(), "image"),
    "a method of a v2 op": (v2.RandomInvert(p=1).forward, "image"),
    "a partial v2 op": (functools.partial(v2.RandomInvert(p=1)), "image"),
    "v2 ToTensor": (v2.ToTensor, "pil"),
    "v2 Compose with ToTensor": (lambda: v2.Compose([v2.Resize((8, 9)), v2.ToTensor()]), "pil"),
    "v1 op": (v1.Resize((8, 9)), "tensor"),
    "v1 Compose": (v1.Compose([v1.Resize((8, 9)), v1.ToTensor(), v1.Normalize([0.5], [0.5])]), "pil"),
    "v1 ToTensor": (v1.ToTensor(), "pil"),
    "v1 PILToTensor": (v1.PILToTensor(), "pil"),
    "v1 RandomApply": (v1.RandomApply(torch.nn.ModuleList([v1.RandomInvert(p=1)]), p=1), "tensor"),
    "v1 Lambda": (v1.Lambda(torch.Tensor.bitwise_not), "tensor"),
    "a module of torch": (torch.nn.Sequential(v2.RandomInvert(p=1), v2.RandomVerticalFlip(p=1)), "tensor"),
}


@pytest.mark.filterwarnings("ignore:The transform `ToTensor")
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_torchvisions_ops_do_what_they_do_elsewhere(folder: Path, name: str, layout: Any) -> None:
    op, form = OPS[name]
    op = op() if op is v2.ToTensor or name.endswith("with ToTensor") else op
    wanted = expected(op, form)
    untouched = np.stack([chw(number) for number in range(COUNT)])
    assert "PIL" in name or not np.array_equal(wanted, untouched)
    for source in (folder, Samples(chw), {"image": planar()}):
        got = only(feedline.Loader(source, [op], COUNT, layout=layout, num_workers=0))
        got = got.transpose(0, 3, 1, 2) if layout == "HWC" else got
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted), name
    if wanted.dtype == np.uint8:
        # Among native ops, too.
        around = [RandomHorizontalFlip(p=0), op, RandomHorizontalFlip(p=0), same]
        got = only(feedline.Loader(folder, around, COUNT, layout=layout, num_workers=0))
        assert np.array_equal(got.transpose(0, 3, 1, 2) if layout == "HWC" else got, wanted), name


def test_torchvisions_ops_one_after_the_other(folder: Path) -> None:
    ops = [v2.Resize((8, 9)), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    got = only(feedline.Loader(folder, ops, COUNT, num_workers=0))
    assert np.array_equal(got, expected(v2.Compose(ops), "image"))
    first = [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)]
    got = only(feedline.Loader(folder, first, COUNT, num_workers=0))
    assert np.array_equal(got, expected(v1.Compose(first), "pil"))


def test_torchvisions_ops_refuse_what_is_not_an_image() -> None:
    for value in ("text", np.arange(4.0), {"deep": 1}):
        loader = feedline.Loader(collections.deque([(value, 1)]), [v2.RandomInvert(p=1)], num_workers=0)
        with pytest.raises(feedline.SampleError, match=r"transforms\[0\].*takes images"):
            next(iter(loader))
    for shape in ((5, 16, 20), (16, 20, 5)):
        loader = feedline.Loader(collections.deque([np.zeros(shape)]), [v2.RandomInvert(p=1)], num_workers=0)
        with pytest.raises(feedline.SampleError, match=r"images of 1, 3 or 4 channels, and got .*5"):
            next(iter(loader))
        # A module gets what is not an image as it is.
        volume = np.random.default_rng(1).random(shape)
        (batch,) = feedline.Loader(collections.deque([volume]), [torch.nn.ReLU()], num_workers=0)
        assert np.array_equal(batch[0], volume)
    loader = feedline.Loader({"x": planar()}, [ToDtype("float32"), v1.ToTensor()], num_workers=0)
    with pytest.raises(feedline.SampleError, match=r"transforms\[1\].*ToTensor and PILToTensor take uint8"):
        next(iter(loader))
    with pytest.raises(feedline.SpecError, match=r"transforms\[1\].*MixUp.*without a word"):
        feedline.Loader({"x": planar()}, [CenterCrop(8), PerBatch(v2.MixUp(num_classes=3))])


def test_draws_of_torchvisions_ops_belong_to_the_sample(folder: Path) -> None:
    ops = [v2.RandomCrop(8), v2.RandomApply([v2.ColorJitter(0.5, 0.5)], p=0.5), Resize(8)]
    shared: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5}

    def epochs(**settings: Any) -> list[Any]:
        with feedline.Loader(folder, ops, **shared, **settings) as loader:
            return [[first_field(batch).copy() for batch in loader] for _ in range(2)]

    whole = epochs(num_workers=0)
    assert not np.array_equal(whole[0][0], whole[1][0])
    for executor in ("threads", "processes"):
        for workers in (1, 2):
            got = epochs(executor=executor, num_workers=workers)
            for ours, theirs in zip(got, whole, strict=True):
                assert all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True)), executor


def test_nothing_is_imported_to_tell_functions_apart(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, feedline\n"
        "images = numpy.zeros((4, 3, 8, 8), numpy.uint8)\n"
        "loader = feedline.Loader({'x': images}, [lambda x: x], num_workers=0)\n"
        "next(iter(loader))\n"
        "print([name for name in ('torch', 'torchvision', 'PIL') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr
