"""Augmentation against torchvision, with the parameters that were drawn."""

from __future__ import annotations

import collections
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from feedline import Loader, SampleError, SpecError, transforms
from feedline.transforms import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    MixUp,
    Pad,
    RandAugment,
    RandomAffine,
    RandomChoice,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    Transform,
    TrivialAugmentWide,
)

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")
functional = v2.functional
torch.set_num_threads(1)

Array = npt.NDArray[Any]

SHAPES = [(224, 224, 3), (61, 47, 3), (33, 130, 1), (5, 64, 3), (3, 3, 3)]


def picture(height: int, width: int, channels: int, seed: int = 0) -> Array:
    """Smooth colours, edges and noise, so that every value and every pair of neighbours occurs."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (7 + c) + seed) * 90 + np.cos(y / (5 + 2 * c)) * 60 + 128 for c in range(channels)]
    image = np.stack(waves, axis=-1) + rng.normal(0, 20, (height, width, channels))
    image[: height // 3, : width // 3] = rng.integers(0, 256, channels)
    pixels: Array = image.clip(0, 255).astype(np.uint8)
    return pixels


def tensor(image: Array) -> Any:
    return torch.from_numpy(image.transpose(2, 0, 1).copy())


def floats(image: Array) -> Array:
    return image.astype(np.float32) / 255


def gap(got: Array, wanted: Any) -> float:
    """The largest difference from a tensor of torchvision's."""
    expected = wanted.numpy()
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if got.size == 0:
        return 0.0
    return float(np.abs(got.astype(np.float64) - expected.astype(np.float64)).max())


def share(got: Array, wanted: Any) -> float:
    """The part of elements that differ from a tensor of torchvision's."""
    return float((got != wanted.numpy()).mean())


def jitter(image: Any, drawn: dict[str, Any]) -> Any:
    """What torchvision's ColorJitter does with these parameters."""
    names = ["brightness", "contrast", "saturation", "hue"]
    for which in drawn["fn_idx"]:
        factor = drawn[f"{names[which]}_factor"]
        if factor is not None:
            image = getattr(functional, f"adjust_{names[which]}")(image, factor)
    return image


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_colour_op_equals_torchvision(name: str, shape: tuple[int, int, int]) -> None:
    factors = [-0.5, -0.31, -0.02, 0.0, 0.1, 0.5] if name == "hue" else [0.0, 0.3, 0.999, 1.3, 2.7]
    for factor in factors:
        op = ColorJitter(**{name: (factor, factor)})
        image = picture(*shape)
        wanted = getattr(functional, f"adjust_{name}")(tensor(image), factor)
        got = transforms.apply(image, [op])
        assert gap(got, wanted) <= (1 if name == "hue" else 0), factor
        assert share(got, wanted) < 0.001
        wanted = getattr(functional, f"adjust_{name}")(tensor(floats(image)), factor)
        assert gap(transforms.apply(floats(image), [op]), wanted) < 2e-6


def test_all_colours_equal_torchvision() -> None:
    # Every triple of 32 levels a channel: 32,768 colours.
    levels = np.linspace(0, 255, 32).astype(np.uint8)
    image = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(128, 256, 3)
    for name, factor in [("saturation", 0.4), ("saturation", 1.7), ("hue", 0.123), ("hue", -0.4)]:
        got = transforms.apply(image, [ColorJitter(**{name: (factor, factor)})])
        wanted = getattr(functional, f"adjust_{name}")(tensor(image), factor)
        assert gap(got, wanted) <= (1 if name == "hue" else 0)
        assert share(got, wanted) < 0.001
    assert gap(transforms.apply(image, [Grayscale()]), functional.rgb_to_grayscale(tensor(image))) == 0


def test_colour_jitter_in_random_order() -> None:
    op = ColorJitter(0.4, 0.4, 0.4, 0.1)
    orders = collections.Counter()
    for position in range(200):
        drawn = transforms.drawn((40, 50, 3), [op], seed=3, position=position)[0]
        orders[tuple(drawn["fn_idx"])] += 1
        assert 0.6 <= drawn["brightness_factor"] <= 1.4 and -0.1 <= drawn["hue_factor"] <= 0.1
        if position < 60:
            image = picture(40, 50, 3, position)
            got = transforms.apply(image, [op], seed=3, position=position)
            wanted = jitter(tensor(image), drawn)
            # A level off before a later op may be two after it.
            assert gap(got, wanted) <= 2 and share(got, wanted) < 0.005
            got = transforms.apply(floats(image), [op], seed=3, position=position)
            assert gap(got, jitter(tensor(floats(image)), drawn)) < 1e-5
    assert len(orders) == 24


@pytest.mark.parametrize("shape", SHAPES)
def test_gray_equals_torchvision(shape: tuple[int, int, int]) -> None:
    image = picture(*shape)
    for channels in (1, 3):
        wanted = functional.rgb_to_grayscale(tensor(image), channels)
        assert gap(transforms.apply(image, [Grayscale(channels)]), wanted.contiguous()) == 0
        wanted = functional.rgb_to_grayscale(tensor(floats(image)), channels)
        assert gap(transforms.apply(floats(image), [Grayscale(channels)]), wanted.contiguous()) < 2e-7
    wanted = functional.rgb_to_grayscale(tensor(image), shape[2])
    assert gap(transforms.apply(image, [RandomGrayscale(1)]), wanted.contiguous()) == 0
    assert gap(transforms.apply(image, [RandomGrayscale(0)]), tensor(image)) == 0


def test_gray_in_three_channels_is_three_for_what_follows() -> None:
    image = picture(40, 50, 1)
    paint = RandomErasing(p=1, value=(1, 2, 3))
    drawn = transforms.drawn((40, 50, 3), [Grayscale(3), paint])[1]
    wanted = functional.rgb_to_grayscale(tensor(image), 3).contiguous()
    wanted[:, drawn["i"] : drawn["i"] + drawn["h"], drawn["j"] : drawn["j"] + drawn["w"]] = torch.tensor(
        [1, 2, 3], dtype=torch.uint8
    )[:, None, None]
    assert gap(transforms.apply(image, [Grayscale(3), paint]), wanted) == 0
    bright = ColorJitter(brightness=(1.1, 1.1))
    wanted = functional.adjust_brightness(functional.rgb_to_grayscale(tensor(image), 3), 1.1)
    assert gap(transforms.apply(image, [Grayscale(3), bright]), wanted) == 0
    resized = transforms.apply(image, [Grayscale(3), Resize((20, 30))])
    assert (resized[0] == resized[1]).all() and (resized[0] == resized[2]).all()


@pytest.mark.parametrize("kernel", [1, 3, 5, 9, 23, (5, 11)])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0, 9.0])
def test_blur_equals_torchvision(kernel: int | tuple[int, int], sigma: float) -> None:
    size = [kernel, kernel] if isinstance(kernel, int) else list(kernel)
    for height, width, channels in SHAPES[:3]:
        image = picture(height, width, channels)
        got = transforms.apply(image, [GaussianBlur(kernel, sigma)])
        wanted = functional.gaussian_blur(tensor(image), size, [sigma, sigma])
        assert gap(got, wanted) <= 1 and share(got, wanted) < 0.001
        got = transforms.apply(floats(image), [GaussianBlur(kernel, sigma)])
        assert gap(got, functional.gaussian_blur(tensor(floats(image)), size, [sigma, sigma])) < 2e-6


def test_blur_of_a_small_image_is_refused() -> None:
    with pytest.raises(SpecError, match="needs a larger image"):
        transforms.apply(picture(5, 64, 3), [GaussianBlur(11)])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [3, (2, 5), (1, 0, 4, 2)])
def test_pad_equals_torchvision(mode: str, padding: Any) -> None:
    for image in (picture(20, 31, 3), picture(9, 8, 1)):
        got = transforms.apply(image, [Pad(padding, fill=7, padding_mode=mode)])  # type: ignore[arg-type]
        sides = [padding] if isinstance(padding, int) else list(padding)
        assert gap(got, functional.pad(tensor(image), sides, 7, mode)) == 0
    if mode == "constant":
        got = transforms.apply(picture(20, 31, 3), [Pad(padding, fill=(1, 2, 3))])
        assert gap(got, functional.pad(tensor(picture(20, 31, 3)), sides, [1.0, 2.0, 3.0])) == 0


@pytest.mark.parametrize("value", [0, 130.7, (10, 20, 30)])
def test_erasing_equals_torchvision(value: Any) -> None:
    op = RandomErasing(p=0.7, value=value)
    acted = 0
    for position in range(100):
        image = picture(50, 60, 3)
        drawn = transforms.drawn(image.shape, [op], position=position)[0]
        for given in (image, floats(image)):
            wanted = tensor(given)
            if drawn["acts"]:
                values = torch.tensor([value] if isinstance(value, int | float) else value)[:, None, None]
                wanted = functional.erase(wanted, drawn["i"], drawn["j"], drawn["h"], drawn["w"], values)
            assert gap(transforms.apply(given, [op], position=position), wanted) == 0
        acted += drawn["acts"]
        if drawn["acts"]:
            area = drawn["h"] * drawn["w"] / 3000
            assert 0.015 < area < 0.34 and 0.25 < drawn["h"] / drawn["w"] < 3.8
    assert 55 <= acted <= 85


def test_erasing_with_noise_is_normal_and_only_inside() -> None:
    op = RandomErasing(p=1, value="random", scale=(0.3, 0.3), ratio=(1, 1))
    image = floats(picture(200, 200, 3))
    drawn = transforms.drawn(image.shape, [op])[0]
    got = transforms.apply(image, [op])
    inside = (
        slice(None),
        slice(drawn["i"], drawn["i"] + drawn["h"]),
        slice(drawn["j"], drawn["j"] + drawn["w"]),
    )
    noise = got[inside]
    assert abs(noise.mean()) < 0.03 and abs(noise.std() - 1) < 0.03
    assert abs((np.abs(noise) < 1).mean() - 0.6827) < 0.01
    untouched = got.copy()
    untouched[inside] = tensor(image).numpy()[inside]
    assert (untouched == tensor(image).numpy()).all()


def warped(image: Any, op: Transform, drawn: dict[str, Any], interpolation: str, fill: Any) -> Any:
    mode = v2.InterpolationMode(interpolation)
    if isinstance(op, RandomRotation):
        center = None if op.center is None else list(op.center)
        return functional.rotate(image, drawn["angle"], mode, op.expand, center, fill)
    assert isinstance(op, RandomAffine)
    translate = [int(x) for x in drawn["translate"]]
    center = None if op.center is None else list(op.center)
    return functional.affine(
        image, drawn["angle"], translate, drawn["scale"], drawn["shear"], mode, fill, center
    )


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [0, 114, (200, 3, 77)])
def test_turning_equals_torchvision(interpolation: Any, fill: Any) -> None:
    differing, elements = 0.0, 0
    for position in range(40):
        height, width = [(224, 224), (61, 47), (30, 111)][position % 3]
        image = picture(height, width, 3, position)
        colour = [float(x) for x in fill] if isinstance(fill, tuple) else fill
        shared: dict[str, Any] = {"interpolation": interpolation, "fill": fill}
        for op in (
            RandomRotation(180, **shared),
            RandomRotation((20, 40), center=(11, 25.5), **shared),
            RandomAffine(30, (0.2, 0.1), (0.6, 1.5), (-10, 20, -5, 15), **shared),
            RandomAffine(0, (0.3, 0.4), **shared),
            RandomAffine(15, shear=20, center=(0, 5), **shared),
        ):
            drawn = transforms.drawn(image.shape, [op], position=position)[0]
            got = transforms.apply(image, [op], position=position)
            wanted = warped(tensor(image), op, drawn, interpolation, colour)
            if interpolation == "bilinear":
                assert gap(got, wanted) <= 1, (op, drawn)
            differing += share(got, wanted) * got.size
            elements += got.size
            if interpolation == "bilinear":
                # torch's places are off by up to 3e-5 pixels, and the fill is mixed in by them.
                got = transforms.apply(floats(image), [op], position=position)
                wanted = warped(tensor(floats(image)), op, drawn, interpolation, colour)
                assert gap(got, wanted) < 4e-5 * (1 + np.max(fill)), (op, drawn)
    # Halves, and for "nearest" places half way between two pixels, may fall either way.
    assert differing / elements < 1e-4, differing / elements


def test_quarter_turns_equal_torchvision() -> None:
    for degrees in (0, 90, 180, 270, 360, 450):
        for shape in [(40, 40, 3), (40, 30, 3)]:
            for expand in (False, True):
                image = picture(*shape)
                got = transforms.apply(image, [RandomRotation((degrees, degrees), expand=expand)])
                assert gap(got, functional.rotate(tensor(image), degrees, expand=expand).contiguous()) == 0


def test_expanding_rotation() -> None:
    for angle in (17.0, 45.0, 133.3, 271.0):
        image = picture(61, 47, 3)
        op = RandomRotation((angle, angle), expand=True)
        wanted = functional.rotate(tensor(image), angle, expand=True, fill=0)
        got = transforms.apply(image, [op])
        assert got.shape == tuple(wanted.shape) and share(got, wanted) < 1e-3
    vary = RandomRotation(40, expand=True)
    for position in range(10):
        got = transforms.apply(picture(61, 47, 3), [vary, Resize((40, 40))], position=position)
        assert got.shape == (3, 40, 40)
    with pytest.raises(SpecError, match=r"transforms\[0\].expand"):
        transforms.apply(picture(61, 47, 3), [vary])


TABLES = {"RandAugment": v2.RandAugment, "TrivialAugmentWide": v2.TrivialAugmentWide}


@pytest.mark.parametrize("name", TABLES)
def test_magnitudes_are_the_published_ones(name: str) -> None:
    theirs = TABLES[name]._AUGMENTATION_SPACE
    height, width, bins = 50, 80, 31
    found: dict[str, set[float]] = collections.defaultdict(set)
    for magnitude in range(bins):
        op = RandAugment(1, magnitude) if name == "RandAugment" else TrivialAugmentWide()
        for position in range(150):
            drawn = transforms.drawn((height, width, 3), [op], seed=magnitude, position=position)[0]
            drawn = drawn[0] if isinstance(drawn, list) else drawn
            found[drawn["transform_id"]].add(drawn["magnitude"])
    assert found.keys() == theirs.keys()
    for kind, (magnitudes, signed) in theirs.items():
        table = magnitudes(bins, height, width)
        allowed = {0.0} if table is None else {float(x) for x in table}
        if signed:
            allowed |= {-x for x in allowed}
        exact = sorted(allowed)
        for magnitude in found[kind]:
            near = min(exact, key=lambda x: abs(x - magnitude))
            assert math.isclose(magnitude, near, rel_tol=1e-6, abs_tol=1e-7), (kind, magnitude)
            if "Translate" in kind:
                assert int(magnitude) == int(near)
        assert len(found[kind]) > 0.9 * len(exact), (kind, len(found[kind]), len(exact))


def test_kinds_signs_and_magnitudes_are_uniform() -> None:
    count = 14_000
    kinds: collections.Counter[str] = collections.Counter()
    negative = signed = 0
    bins: collections.Counter[float] = collections.Counter()
    for position in range(count // 2):
        for drawn in transforms.drawn((32, 32), [RandAugment()], position=position)[0]:
            kinds[drawn["transform_id"]] += 1
            if drawn["transform_id"] == "Rotate":
                signed += 1
                negative += drawn["magnitude"] < 0
        drawn = transforms.drawn((32, 32), [TrivialAugmentWide()], position=position)[0]
        if drawn["transform_id"] == "Solarize":
            bins[drawn["magnitude"]] += 1
    # 5 sigma of 14 equally likely kinds.
    assert len(kinds) == 14
    assert all(abs(n - count / 14) < 5 * math.sqrt(count / 14) for n in kinds.values()), kinds
    assert abs(negative / signed - 0.5) < 5 * 0.5 / math.sqrt(signed)
    each = sum(bins.values()) / 31
    assert len(bins) == 31 and all(abs(n - each) < 5 * math.sqrt(each) for n in bins.values())


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, 128])
def test_every_augmentation_at_every_magnitude_equals_torchvision(interpolation: Any, fill: Any) -> None:
    theirs = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode(interpolation), fill=fill)
    seen: set[tuple[str, float]] = set()
    differing, elements = 0.0, 0
    for image in (picture(64, 64, 3), picture(50, 70, 3, 5), picture(33, 40, 1)):
        ops: list[Transform] = [RandAugment(1, m, interpolation=interpolation, fill=fill) for m in range(31)]
        ops.append(TrivialAugmentWide(interpolation=interpolation, fill=fill))
        for number, op in enumerate(ops):
            positions = 60 if isinstance(op, RandAugment) else 1500
            for position in range(positions):
                drawn = transforms.drawn(image.shape, [op], seed=number, position=position)[0]
                drawn = drawn[0] if isinstance(drawn, list) else drawn
                kind, magnitude = drawn["transform_id"], drawn["magnitude"]
                if (number, kind, magnitude, image.shape) in seen:
                    continue
                seen.add((number, kind, magnitude, image.shape))  # type: ignore[arg-type]
                got = transforms.apply(image, [op], seed=number, position=position)
                wanted = theirs._apply_image_or_video_transform(
                    tensor(image), kind, magnitude, theirs.interpolation, theirs._fill
                ).contiguous()
                places = kind.startswith(("Shear", "Rotate"))
                if not places:
                    assert gap(got, wanted) == 0, (kind, magnitude)
                elif interpolation == "bilinear":
                    assert gap(got, wanted) <= 1, (kind, magnitude)
                if places:
                    differing += share(got, wanted) * got.size
                    elements += got.size
    assert differing / elements < 1e-4
    kinds = {(kind, abs(magnitude)) for _, kind, magnitude, _ in seen}  # type: ignore[misc]
    assert len(kinds) > 14 * 2 * 31 * 0.5


def test_several_ops_in_a_row() -> None:
    theirs = v2.RandAugment(num_ops=4, magnitude=20)
    for position in range(60):
        image = picture(48, 64, 3, position)
        op = RandAugment(4, 20)
        wanted = tensor(image)
        for drawn in transforms.drawn(image.shape, [op], position=position)[0]:
            wanted = theirs._apply_image_or_video_transform(
                wanted, drawn["transform_id"], drawn["magnitude"], theirs.interpolation, theirs._fill
            ).contiguous()
        assert share(transforms.apply(image, [op], position=position), wanted) < 2e-3


@pytest.mark.parametrize(
    "op",
    [
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        GaussianBlur((5, 9), 1.5),
        RandomGrayscale(1),
        RandAugment(3, 15),
        TrivialAugmentWide(),
        RandomRotation(30),
        RandomErasing(1, value=(1, 2, 3)),
    ],
)
def test_a_flip_before_is_a_flip(op: Transform) -> None:
    # Whether the flip is a view or a copy must not show.
    for position in range(12):
        for horizontal, vertical in [(1, 0), (0, 1), (1, 1)]:
            image = picture(40, 52, 3, position)
            flips = [RandomHorizontalFlip(horizontal), RandomVerticalFlip(vertical)]
            turned = image[:: -1 if vertical else 1, :: -1 if horizontal else 1].copy()
            # Op number 2 in both, so that the same is drawn.
            still = [RandomHorizontalFlip(0), RandomVerticalFlip(0)]
            got = transforms.apply(image, [*flips, op], position=position)
            wanted = transforms.apply(turned, [*still, op], position=position)
            assert np.abs(got.astype(int) - wanted.astype(int)).max() <= (
                1 if isinstance(op, GaussianBlur) else 0
            )


@pytest.mark.parametrize(
    ("op", "key"),
    [
        ({"op": "ColorJitter", "brightness": -1}, "brightness"),
        ({"op": "ColorJitter", "contrast": [1.5, 0.5]}, "contrast"),
        ({"op": "ColorJitter", "hue": 0.7}, "hue"),
        ({"op": "ColorJitter", "saturation": [1, 2, 3]}, "saturation"),
        ({"op": "Grayscale", "num_output_channels": 2}, "num_output_channels"),
        ({"op": "RandomGrayscale", "p": 1.5}, "p"),
        ({"op": "GaussianBlur"}, "kernel_size"),
        ({"op": "GaussianBlur", "kernel_size": 4}, "kernel_size"),
        ({"op": "GaussianBlur", "kernel_size": 3, "sigma": 0}, "sigma"),
        ({"op": "GaussianBlur", "kernel_size": 3, "sigma": [2, 1]}, "sigma"),
        ({"op": "RandomErasing", "scale": [0.5, 1.5]}, "scale"),
        ({"op": "RandomErasing", "ratio": [0, 1]}, "ratio"),
        ({"op": "RandomErasing", "value": "noise"}, "value"),
        ({"op": "RandomErasing", "value": [1, 2]}, "value"),
        ({"op": "RandomRotation"}, "degrees"),
        ({"op": "RandomRotation", "degrees": -3}, "degrees"),
        ({"op": "RandomRotation", "degrees": [3, 2]}, "degrees"),
        ({"op": "RandomRotation", "degrees": 3, "interpolation": "bicubic"}, "interpolation"),
        ({"op": "RandomRotation", "degrees": 3, "center": [1]}, "center"),
        ({"op": "RandomAffine", "degrees": 3, "translate": [0.5, 1.5]}, "translate"),
        ({"op": "RandomAffine", "degrees": 3, "scale": [0, 1]}, "scale"),
        ({"op": "RandomAffine", "degrees": 3, "shear": [1, 2, 3]}, "shear"),
        ({"op": "Pad"}, "padding"),
        ({"op": "Pad", "padding": [1, 2, 3]}, "padding"),
        ({"op": "Pad", "padding": 1, "padding_mode": "wrap"}, "padding_mode"),
        ({"op": "Pad", "padding": 1, "fill": [1, 2, 3], "padding_mode": "edge"}, "fill"),
        ({"op": "RandAugment", "num_ops": -1}, "num_ops"),
        ({"op": "RandAugment", "magnitude": 31}, "magnitude"),
        ({"op": "RandAugment", "num_magnitude_bins": 1}, "num_magnitude_bins"),
        ({"op": "TrivialAugmentWide", "fill": "red"}, "fill"),
        ({"op": "MixUp"}, "op"),
    ],
)
def test_wrong_parameters_are_named(op: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError, match=rf"transforms\[0\]\.{key}\b"):
        transforms.apply(picture(20, 20, 3), [op])


def test_what_does_not_fit_the_image_is_reported() -> None:
    for op in (ColorJitter(0.5), RandomGrayscale(), RandAugment(), Grayscale()):
        with pytest.raises(SpecError, match="cannot work on 4 channels"):
            transforms.apply(picture(20, 20, 4), [op])
    with pytest.raises(SpecError, match="before ToDtype"):
        transforms.apply(floats(picture(20, 20, 3)), [RandAugment()])
    with pytest.raises(SpecError, match="fill has 3 values for 1 channels"):
        transforms.apply(picture(20, 20, 1), [RandomAffine(10, fill=(1, 2, 3))])


MIXES: list[Transform] = [
    MixUp(num_classes=50),
    CutMix(alpha=0.6, num_classes=50),
    RandomChoice([CutMix(num_classes=50), MixUp(alpha=0.3, num_classes=50)], p=[2, 1]),
]


def mixed(images: Any, labels: Any, drawn: dict[str, Any]) -> tuple[Any, Any]:
    """What torchvision's MixUp or CutMix does with these parameters."""
    if drawn["box"] is None:
        op = v2.MixUp(num_classes=50)
        params = {"labels": labels, "batch_size": len(labels), "lam": drawn["lam"]}
    else:
        op = v2.CutMix(num_classes=50)
        params = {
            "labels": labels,
            "batch_size": len(labels),
            "box": drawn["box"],
            "lam_adjusted": drawn["lam"],
        }
    return op.transform(images, params), op.transform(labels, params)


@pytest.mark.parametrize("op", MIXES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
def test_mixing_equals_torchvision(op: Transform, dtype: str, layout: Any) -> None:
    images = np.stack([picture(20, 30, 3, number) for number in range(50)])
    arrays = {"image": images, "label": np.arange(50)}
    ops = [ToDtype(dtype, scale=True)]
    shared: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 4, "layout": layout, "num_workers": 2}
    shared["output"] = "torch"
    kinds = set()
    with Loader(arrays, ops, **shared) as plain, Loader(arrays, [*ops, op], **shared) as loader:
        for number, (before, after) in enumerate(zip(plain, loader, strict=True)):
            drawn = transforms.drawn_mix((20, 30), [*ops, op], seed=4, batch=number)
            kinds.add(drawn["box"] is None)
            source = before["image"]
            if layout == "HWC":
                source = source.permute(0, 3, 1, 2)
            wanted, labels = mixed(source, before["label"], drawn)
            if layout == "HWC":
                wanted = wanted.permute(0, 2, 3, 1)
            got = after["image"]
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            scale = {"float32": 1e-7, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
            assert (got.float() - wanted.float()).abs().max() <= scale
            assert (after["label"] - labels).abs().max() < 1e-7
            assert after["label"].dtype == torch.float32 and after["label"].shape == (
                len(before["label"]),
                50,
            )
    assert len(kinds) == (2 if isinstance(op, RandomChoice) else 1)


def test_cutmix_of_bytes_and_named_classes(photos: Path) -> None:
    # The source's three classes are known.
    with Loader(photos, [CutMix()], batch_size=10, seed=1) as loader:
        for number, (images, labels) in enumerate(loader):
            drawn = transforms.drawn_mix((24, 32), [CutMix()], seed=1, batch=number)
            assert images.dtype == np.uint8 and labels.shape == (10, 3)
            np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
            # All ten rows of a batch are of one class.
            np.testing.assert_allclose(labels[:, number], 1, rtol=1e-6)
            x1, y1, x2, y2 = drawn["box"]
            assert math.isclose(drawn["lam"], 1 - (x2 - x1) * (y2 - y1) / (24 * 32))


def test_shares_are_beta() -> None:
    for alpha in (0.2, 1.0, 3.0):
        shares = [transforms.drawn_mix((8, 8), [MixUp(alpha=alpha)], batch=n)["lam"] for n in range(4000)]
        # The variance of Beta(a, a); 4,000 draws are good to a few per cent.
        assert abs(np.mean(shares) - 0.5) < 0.03
        assert abs(np.var(shares) * 4 * (2 * alpha + 1) - 1) < 0.1


def test_a_label_beyond_the_classes_is_the_sample_s_error() -> None:
    arrays = {"image": np.zeros((6, 8, 8, 3), np.uint8), "label": np.array([0, 1, 2, 3, -1, 9])}
    for rows, label in [(slice(0, 5), -1), ([0, 1, 5], 9)]:
        part = {name: array[rows] for name, array in arrays.items()}
        with pytest.raises(SampleError, match=f"has the label {label}, which is not one of 4 classes"):
            list(Loader(part, [CutMix(num_classes=4)], batch_size=2))
    with Loader(arrays, [CutMix(num_classes=4)], batch_size=2, on_error="skip") as loader:
        assert len(list(loader)) == 3


def test_what_cannot_be_mixed_is_refused(photos: Path) -> None:
    images = np.zeros((6, 8, 8, 3), np.uint8)
    labels = np.arange(6)
    with pytest.raises(SpecError, match=r"transforms\[0\].*put ToDtype"):
        Loader({"image": images, "label": labels}, [MixUp(num_classes=6)])
    with pytest.raises(SpecError, match=r"transforms\[0\].num_classes: is missing"):
        Loader({"image": images, "label": labels}, [CutMix()])
    with pytest.raises(SpecError, match=r"transforms\[0\]: needs labels"):
        Loader({"image": images}, [CutMix(num_classes=6)])
    with pytest.raises(SpecError, match=r"transforms\[0\].num_classes = 2: is too few"):
        Loader(photos, [CutMix(num_classes=2)])
    with pytest.raises(SpecError, match=r"transforms\[1\].*comes after CutMix"):
        Loader({"image": images, "label": labels}, [CutMix(num_classes=6), ToDtype()])
    with pytest.raises(SpecError, match=r"transforms\[0\].alpha"):
        Loader({"image": images, "label": labels}, [CutMix(alpha=0, num_classes=6)])
    with pytest.raises(SpecError, match=r"transforms\[0\].transforms\[1\].op"):
        Loader({"image": images, "label": labels}, [RandomChoice([CutMix(num_classes=6), Resize(3)])])
