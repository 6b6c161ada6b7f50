"""Transforms against Pillow and torchvision."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from feedline import _native
from PIL import Image

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")
functional = v2.functional

Array = npt.NDArray[Any]

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def op(name: str, **parameters: Any) -> dict[str, Any]:
    return {"op": name, **parameters}


def run(
    ops: list[dict[str, Any]],
    image: Array,
    layout: str = "hwc",
    planar: bool = False,
    position: int = 0,
    seed: int = 0,
    epoch: int = 0,
) -> Array:
    """Applies ops to an image of (height, width, channels)."""
    height, width, channels = image.shape
    stored = np.ascontiguousarray(image.transpose(2, 0, 1) if planar else image)
    data, shape, dtype = _native.apply_transforms(
        json.dumps(ops),
        layout,
        stored.tobytes(),
        height,
        width,
        channels,
        planar,
        str(image.dtype),
        seed,
        epoch,
        position,
    )
    if dtype == "bfloat16":
        wide: Array = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    if layout == "channels_last":
        channels, height, width = shape
        return np.frombuffer(data, np.dtype(dtype)).reshape(height, width, channels).transpose(2, 0, 1)
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def photo(height: int, width: int, seed: int = 0, channels: int = 3) -> Array:
    """A natural spectrum: noise whose amplitude falls with frequency, and edges."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(width), np.fft.fftfreq(height)))
    spectrum = np.fft.fft2(rng.normal(size=(channels, height, width))) / np.maximum(
        frequency, 1 / max(height, width)
    )
    image = np.fft.ifft2(spectrum).real
    image = image / (image.std() + 1e-9) * 50 + 128
    image[:, height // 3 : height // 2, width // 4 :] = 250
    pixels: Array = image.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    return pixels


def noise(height: int, width: int, channels: int = 3) -> Array:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels)).astype(np.uint8)


def coordinates(height: int, width: int) -> Array:
    """An image whose pixels tell where they are."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([y, x, np.full_like(y, 77)], -1).astype(np.uint8)


def pillow_resize(image: Array, height: int, width: int, interpolation: str) -> Array:
    mode = image[..., 0] if image.shape[2] == 1 else image
    resized = Image.fromarray(mode).resize((width, height), FILTERS[interpolation])
    return np.asarray(resized).reshape(height, width, -1)


def exact_resize(image: Array, height: int, width: int) -> Array:
    """Bilinear without rounding between the passes, as Pillow does it for floats."""
    planes = [Image.fromarray(image[..., c].astype(np.float32)) for c in range(image.shape[2])]
    return np.stack([np.asarray(p.resize((width, height), Image.Resampling.BILINEAR)) for p in planes], -1)


def assert_close(got: Array, wanted: Array, what: object = "", exact: Array | None = None) -> None:
    """Within one level of Pillow's bytes, and mostly equal; or, where `exact` is given, the right level.

    Pillow rounds to whole levels between its passes, which alone moves one element in seven. Bilinear
    resizing of interleaved bytes does not: it is held to the exact result instead.
    """
    assert got.shape == wanted.shape
    gap = np.abs(got.astype(int) - wanted.astype(int))
    assert gap.max() <= 1, (what, gap.max())
    if exact is None:
        assert gap.mean() < 0.1, (what, gap.mean())
    else:
        assert np.abs(got - exact).max() < 0.6, (what, np.abs(got - exact).max())


SIZES = [
    ((375, 500), (224, 224)),
    ((61, 47), (128, 201)),
    ((33, 200), (77, 50)),
    ((8, 9), (3, 31)),
    ((64, 64), (64, 30)),
]


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_resize_agrees_with_pillow(interpolation: str, planar: bool) -> None:
    for (height, width), (to_height, to_width) in SIZES:
        for image in (photo(height, width), photo(height, width, 1, 1)):
            ops = [op("Resize", size=[to_height, to_width], interpolation=interpolation)]
            got = run(ops, image, planar=planar)
            wanted = pillow_resize(image, to_height, to_width, interpolation)
            fused = interpolation == "bilinear" and not planar
            exact = exact_resize(image, to_height, to_width) if fused else None
            assert_close(got, wanted, (height, width, to_height, to_width), exact)
            if interpolation.startswith("nearest"):
                assert np.array_equal(got, wanted)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_resize_of_noise_stays_within_one(interpolation: str) -> None:
    # Noise makes bicubic and lanczos overshoot everywhere, where the passes' order shows.
    for (height, width), (to_height, to_width) in SIZES:
        image = noise(height, width)
        got = run([op("Resize", size=[to_height, to_width], interpolation=interpolation)], image)
        exact = exact_resize(image, to_height, to_width) if interpolation == "bilinear" else None
        assert_close(got, pillow_resize(image, to_height, to_width, interpolation), (height, width), exact)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resize_at_random_sizes(interpolation: str) -> None:
    rng = np.random.default_rng(4)
    for case in range(120):
        height, width, to_height, to_width = (int(x) for x in rng.integers(2, 200, 4))
        image = photo(height, width, case) if case % 2 else noise(height, width)
        got = run(
            [op("Resize", size=[to_height, to_width], interpolation=interpolation)],
            image,
            planar=case % 3 == 0,
        )
        wanted = pillow_resize(image, to_height, to_width, interpolation)
        fused = interpolation == "bilinear" and case % 3 != 0
        exact = exact_resize(image, to_height, to_width) if fused else None
        assert_close(got, wanted, (height, width, to_height, to_width), exact)
        if interpolation != "bilinear":
            assert np.array_equal(got, wanted)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_crop_and_flip_then_resize(interpolation: str, planar: bool) -> None:
    image = photo(97, 131)
    for horizontal, vertical in itertools.product([0, 1], [0, 1]):
        ops = [
            op("CenterCrop", size=[61, 83]),
            op("RandomHorizontalFlip", p=horizontal),
            op("RandomVerticalFlip", p=vertical),
            op("Resize", size=[40, 50], interpolation=interpolation),
        ]
        part = image[18:79, 24:107]
        part = part[:: -1 if vertical else 1, :: -1 if horizontal else 1]
        wanted = pillow_resize(np.ascontiguousarray(part), 40, 50, interpolation)
        exact = exact_resize(part, 40, 50) if interpolation == "bilinear" and not planar else None
        assert_close(run(ops, image, planar=planar), wanted, (horizontal, vertical), exact)


def test_resize_by_one_side_has_torchvisions_size() -> None:
    for height, width, size, max_size in [
        (375, 500, 256, None),
        (500, 375, 256, None),
        (333, 333, 100, None),
        (100, 1000, 50, 300),
        (1000, 99, 64, 65),
        (480, 641, None, 224),
    ]:
        image = photo(height, width)
        wanted = v2.Resize(size, max_size=max_size)(torch.zeros(3, height, width)).shape
        assert run([op("Resize", size=size, max_size=max_size)], image, "chw").shape == tuple(wanted)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("planar", [False, True])
def test_resize_of_floats_agrees_with_torchvision(interpolation: str, planar: bool) -> None:
    image = photo(97, 131).astype(np.float32) / 255
    got = run([op("Resize", size=[50, 77], interpolation=interpolation)], image, "chw", planar)
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
    wanted = functional.resize(tensor, [50, 77], v2.InterpolationMode(interpolation), antialias=True).numpy()
    assert np.abs(got - wanted).max() < 1e-5


def test_resize_without_antialias_agrees_with_torchvision() -> None:
    image = photo(97, 131).astype(np.float32) / 255
    got = run([op("Resize", size=[50, 77], antialias=False)], image, "chw")
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
    wanted = functional.resize(tensor, [50, 77], antialias=False).numpy()
    assert np.abs(got - wanted).max() < 1e-5


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("layout", ["chw", "hwc", "channels_last"])
def test_center_crop_equals_torchvision(layout: str, planar: bool) -> None:
    for height, width, size in [
        (50, 60, 20),
        (51, 60, [20, 33]),
        (10, 60, 31),
        (9, 8, [12, 3]),
        (5, 5, 12),
        (7, 7, 7),
    ]:
        image = photo(height, width)
        wanted = functional.center_crop(torch.from_numpy(image.transpose(2, 0, 1).copy()), size).numpy()
        got = run([op("CenterCrop", size=size)], image, layout, planar)
        assert np.array_equal(got, wanted.transpose(1, 2, 0) if layout == "hwc" else wanted), (
            height,
            width,
            size,
        )


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
def test_random_crop_equals_torchvision_at_the_same_place(padding_mode: str, planar: bool) -> None:
    height, width, size = 32, 32, (28, 30)
    for padding, fill in [(None, 0), (4, 0), ([3, 5], 9), ([1, 2, 3, 4], [1, 2, 3])]:
        if isinstance(fill, list) and padding_mode != "constant":
            continue  # torchvision refuses it
        image = coordinates(height, width)
        sides = padding if isinstance(padding, list) else [padding or 0]
        left, top, right, bottom = sides * (4 // len(sides))
        tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
        padded = functional.pad(
            tensor, [left, top, right, bottom], fill=fill, padding_mode=padding_mode
        ).numpy()
        windows = {}
        for y in range(padded.shape[1] - size[0] + 1):
            for x in range(padded.shape[2] - size[1] + 1):
                windows[padded[:, y : y + size[0], x : x + size[1]].tobytes()] = (y, x)
        seen = set()
        for position in range(300):
            parameters = op("RandomCrop", size=size, padding=padding, fill=fill, padding_mode=padding_mode)
            got = run([parameters], image, "chw", planar, position)
            seen.add(windows[got.tobytes()])  # a window that torchvision could have cut, or a KeyError
        assert len(seen) > 0.5 * min(len(windows), 300)


def test_random_crop_pads_if_needed_or_refuses() -> None:
    image = coordinates(10, 40)
    with pytest.raises(ValueError, match="larger than the image"):
        run([op("RandomCrop", size=12)], image)
    for position in range(50):
        got = run([op("RandomCrop", size=12, pad_if_needed=True)], image, position=position)
        rows = got[got[..., 2] == 77][:, 0]
        # 2 rows are missing; torchvision pads 2 at each side and then cuts 12 of 14.
        assert got.shape == (12, 12, 3)
        assert len(set(rows.tolist())) == 10


def test_random_crop_is_uniform() -> None:
    image = coordinates(40, 40)
    counts = np.zeros((9, 9))
    for position in range(8100):
        y, x, _ = run([op("RandomCrop", size=32)], image, position=position)[0, 0]
        counts[y, x] += 1
    # 80 degrees of freedom: 140 is beyond 1 in 20,000.
    assert ((counts - 100) ** 2 / 100).sum() < 140


@pytest.mark.parametrize(("name", "axis"), [("RandomHorizontalFlip", 1), ("RandomVerticalFlip", 0)])
def test_flips(name: str, axis: int) -> None:
    image = photo(13, 17)
    flipped = 0
    for position in range(2000):
        got = run([op(name)], image, position=position)
        same = np.array_equal(got, image)
        assert same or np.array_equal(got, np.flip(image, axis))
        flipped += not same
    # 4 sigma of a fair coin.
    assert abs(flipped - 1000) < 90
    for planar, layout in itertools.product([False, True], ["chw", "hwc"]):
        got = run([op(name, p=1)], image, layout, planar)
        wanted = np.flip(image, axis)
        assert np.array_equal(got, wanted if layout == "hwc" else wanted.transpose(2, 0, 1))


NORMAL: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("layout", ["chw", "hwc", "channels_last"])
def test_normalize_equals_torchvision(layout: str, planar: bool) -> None:
    for height, width in [(1, 1), (5, 7), (32, 32), (223, 225)]:
        image = photo(height, width)
        got = run(
            [op("ToDtype", dtype="float32", scale=True), op("Normalize", **NORMAL)], image, layout, planar
        )
        tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
        wanted = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(**NORMAL)])(tensor).numpy()
        assert np.abs(got - (wanted.transpose(1, 2, 0) if layout == "hwc" else wanted)).max() < 1e-6


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_to_dtype_equals_torchvision(dtype: str, scale: bool) -> None:
    bytes_in = np.arange(256 * 3, dtype=np.uint16).astype(np.uint8).reshape(16, 16, 3)
    floats = np.linspace(0, 1, 16 * 16 * 3, dtype=np.float32).reshape(16, 16, 3)
    for image in (bytes_in, floats):
        got = run([op("ToDtype", dtype=dtype, scale=scale)], image)
        wanted = functional.to_dtype(torch.from_numpy(image), getattr(torch, dtype), scale=scale)
        wanted = wanted.float().numpy() if dtype == "bfloat16" else wanted.numpy()
        # One rounding in single precision, as in torch.
        assert np.array_equal(got, wanted), (image.dtype, dtype)


def test_the_usual_chains() -> None:
    image = photo(375, 500)
    chain = [
        op("Resize", size=256),
        op("CenterCrop", size=224),
        op("ToDtype", dtype="float32", scale=True),
        op("Normalize", **NORMAL),
    ]
    got = run(chain, image, "chw")
    reference = v2.Compose(
        [
            v2.Resize(256),
            v2.CenterCrop(224),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(**NORMAL),
        ]
    )
    wanted = reference(Image.fromarray(image)).numpy()
    # One level of 255, in units of the smallest deviation.
    assert np.abs(got - wanted).max() <= 1 / 255 / 0.224 + 1e-5
    exact = exact_resize(image, 256, 341)[16:240, 58:282].transpose(2, 0, 1) / 255
    mean, std = (np.array(NORMAL[name]).reshape(3, 1, 1) for name in ("mean", "std"))
    assert np.abs(got - (exact - mean) / std).max() < 0.53 / 255 / 0.224
    # Scaling first computes on floats: torchvision does the same there.
    got = run([chain[2], chain[0], chain[1], chain[3]], image, "chw", planar=True)
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
    reference = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Resize(256), v2.CenterCrop(224), v2.Normalize(**NORMAL)]
    )
    assert np.abs(got - reference(tensor).numpy()).max() < 1e-4


# RandomResizedCrop: where torchvision would have cut, and how often


def our_parts(height: int, width: int, count: int, **parameters: Any) -> Array:
    """(top, left, height, width) of parts, read from where the corners' pixels come from."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    image = np.stack([y, x, np.zeros_like(y)], -1)
    parts = []
    for position in range(count):
        # At the nearest pixel, a grid as large as the image shows every row and column of the part.
        got = run(
            [op("RandomResizedCrop", size=[height, width], interpolation="nearest", **parameters)],
            image,
            position=position,
            seed=5,
        )
        top, left = got[0, 0, :2]
        bottom, right = got[-1, -1, :2]
        parts.append((top, left, bottom - top + 1, right - left + 1))
    return np.array(parts).astype(int)


def torchvision_parts(height: int, width: int, count: int, **parameters: Any) -> Array:
    transform = v2.RandomResizedCrop(8, **parameters)
    tensor = torch.zeros(1, height, width)
    parts = []
    for _ in range(count):
        drawn = transform.make_params([tensor])
        parts.append((drawn["top"], drawn["left"], drawn["height"], drawn["width"]))
    return np.array(parts)


def two_sample_gap(a: Array, b: Array) -> float:
    """Kolmogorov and Smirnov's statistic, scaled so that 2 is beyond 1 in 1,000."""
    both = np.sort(np.concatenate([a, b]))
    gap = np.abs(
        np.searchsorted(np.sort(a), both, side="right") / len(a)
        - np.searchsorted(np.sort(b), both, side="right") / len(b)
    ).max()
    return float(gap * math.sqrt(len(a) * len(b) / (len(a) + len(b))))


@pytest.mark.parametrize(
    ("height", "width", "parameters"),
    [
        (96, 128, {}),
        (128, 96, {}),
        (90, 90, {"scale": (0.5, 1.0)}),
        (40, 160, {}),
        (160, 30, {"ratio": (0.5, 2.0)}),
        (16, 256, {}),
    ],
)
def test_random_resized_crop_has_torchvisions_distribution(
    height: int, width: int, parameters: dict[str, Any]
) -> None:
    torch.manual_seed(11)
    ours = our_parts(height, width, 3000, **parameters)
    theirs = torchvision_parts(height, width, 6000, **parameters)
    measures: dict[str, Callable[[Array], Array]] = {
        "area": lambda p: p[:, 2] * p[:, 3] / (height * width),
        "aspect": lambda p: np.log(p[:, 3] / p[:, 2]),
        "top": lambda p: p[:, 0],
        "left": lambda p: p[:, 1],
    }
    for name, of in measures.items():
        assert two_sample_gap(of(ours), of(theirs)) < 2.0, name


def test_the_distribution_test_can_fail() -> None:
    torch.manual_seed(11)
    ours = our_parts(96, 128, 3000, scale=[0.12, 1.0])
    theirs = torchvision_parts(96, 128, 6000)
    assert two_sample_gap(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) > 2.0


def test_random_resized_crop_resizes_the_part_alone() -> None:
    # A part's edge must not see what lies beyond it, as cropping first would not.
    image = photo(120, 160)
    for position in range(10):
        ramp = np.stack([*np.mgrid[0:120, 0:160], np.zeros((120, 160))], -1).astype(np.float32)
        where = run(
            [op("RandomResizedCrop", size=[120, 160], interpolation="nearest")], ramp, position=position
        )
        (top, left), (bottom, right) = where[0, 0, :2].astype(int), where[-1, -1, :2].astype(int)
        part = np.ascontiguousarray(image[top : bottom + 1, left : right + 1])
        got = run([op("RandomResizedCrop", size=[64, 64])], image, position=position)
        assert_close(got, pillow_resize(part, 64, 64, "bilinear"), position, exact_resize(part, 64, 64))


def test_draws_depend_on_seed_epoch_and_position_alone() -> None:
    image = photo(40, 50)
    ops = [op("RandomResizedCrop", size=16), op("RandomHorizontalFlip")]
    first = run(ops, image, seed=1, epoch=2, position=3)
    assert np.array_equal(first, run(ops, image, seed=1, epoch=2, position=3))
    for seed, epoch, position in [(2, 2, 3), (1, 3, 3), (1, 2, 4)]:
        assert not np.array_equal(first, run(ops, image, seed=seed, epoch=epoch, position=position))


def test_mistakes_name_the_key() -> None:
    image = photo(4, 4)
    with pytest.raises(
        ValueError, match=r"transforms\[0\]\.op = \"Resise\": unknown op.*did you mean Resize\?"
    ):
        run([op("Resise", size=3)], image)
    with pytest.raises(ValueError, match=r"transforms\[1\]\.size = 0:"):
        run([op("ToDtype"), op("CenterCrop", size=0)], image)
    with pytest.raises(ValueError, match=r"ToDtype\(\"float32\", scale=True\)"):
        run([op("Normalize", mean=0.5, std=0.5)], image)
    with pytest.raises(ValueError, match=r"transforms\[1\]\.mean = \[.*3 values, but images have 1 channels"):
        run([op("ToDtype"), op("Normalize", **NORMAL)], photo(4, 4, channels=1))
