"""The ops of a pipeline, with the names, parameters and defaults of torchvision's v2 transforms.

They are plain descriptions: the engine runs them. Equal parameters make equal ops. A plain Python
function may stand among them in a loader's transforms: it gets an image as a NumPy array [height,
width, channels] and returns one; `PerBatch` has functions for whole batches.

>>> from feedline.transforms import RandomResizedCrop
>>> RandomResizedCrop(224)
RandomResizedCrop(size=224)
>>> RandomResizedCrop(224).spec()
{'op': 'RandomResizedCrop', 'size': 224}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

import numpy
import numpy.typing

from feedline import _native
from feedline._errors import SpecError
from feedline.spec.plain import plain

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pad",
    "PerBatch",
    "RandAugment",
    "RandomAffine",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "apply",
    "drawn",
    "drawn_mix",
]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Sampling = Literal["nearest", "bilinear"]
Size = int | Sequence[int]
Number = float | Sequence[float]


class Transform:
    """One op."""

    def _given(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        found = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if default is MISSING or _comparable(value) != _comparable(default):
                found[field.name] = value
        return found

    def spec(self) -> dict[str, Any]:
        """The op as a description holds it: its name and what differs from the defaults."""
        name = type(self).__name__
        return {"op": name, **{key: plain(key, value) for key, value in self._given().items()}}

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self._given().items())
        return f"{type(self).__name__}({given})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Transform) and self.spec() == other.spec()

    def __hash__(self) -> int:
        return hash(json.dumps(self.spec(), sort_keys=True))


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False, repr=False)
class Resize(Transform):
    """To `size`: a number is the shorter side, a pair is height and width.

    `size=None` with `max_size` makes the longer side `max_size`.
    """

    size: Size | None
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class CenterCrop(Transform):
    """The middle; an image that is smaller is padded with zeros."""

    size: Size


@dataclass(frozen=True, eq=False, repr=False)
class RandomCrop(Transform):
    """A random part, after padding."""

    size: Size
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0
    padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"


@dataclass(frozen=True, eq=False, repr=False)
class RandomResizedCrop(Transform):
    """A random part of random area and aspect, resized."""

    size: Size
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class RandomHorizontalFlip(Transform):
    """Left and right swapped, with probability `p`."""

    p: float = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class RandomVerticalFlip(Transform):
    """Top and bottom swapped, with probability `p`."""

    p: float = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class Normalize(Transform):
    """Subtracts `mean` and divides by `std`, for each channel."""

    mean: float | Sequence[float]
    std: float | Sequence[float]


@dataclass(frozen=True, eq=False, repr=False)
class ToDtype(Transform):
    """To another type of elements; `scale` maps the full range of one type to that of the other.

    `dtype` is a name ("float32"), a NumPy type or a torch type.
    """

    dtype: Any = "float32"
    scale: bool = False

    def _given(self) -> dict[str, Any]:
        given = super()._given()
        if "dtype" in given:
            given["dtype"] = dtype_name(self.dtype)
            if given["dtype"] == "float32":
                del given["dtype"]
        return given


@dataclass(frozen=True, eq=False, repr=False)
class Pad(Transform):
    """Pixels added around the image: one number, (left and right, top and bottom) or four.

    Equal to torchvision in every bit.
    """

    padding: int | Sequence[int]
    fill: Number = 0
    padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"


@dataclass(frozen=True, eq=False, repr=False)
class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue by random factors, in random order.

    A number x is the range 1 - x to 1 + x (for hue -x to x), a pair is the range itself.
    Equal to torchvision on `uint8` for the same factors, within one level for hue; within 2e-6 on
    `float32`.
    """

    brightness: Number | None = None
    contrast: Number | None = None
    saturation: Number | None = None
    hue: Number | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Grayscale(Transform):
    """Without colours, in 1 or 3 channels. Equal to torchvision on `uint8`."""

    num_output_channels: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class RandomGrayscale(Transform):
    """Without colours, with probability `p`, in as many channels as before."""

    p: float = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class GaussianBlur(Transform):
    """Blurred by a Gaussian; `kernel_size` is odd, `sigma` a number or a range.

    Within one level of torchvision on `uint8`, within 2e-6 on `float32`.
    """

    kernel_size: int | Sequence[int]
    sigma: Number = (0.1, 2.0)


@dataclass(frozen=True, eq=False, repr=False)
class RandomErasing(Transform):
    """A random rectangle painted over, with probability `p`.

    `value` is a number, one for each channel, or "random" for normal noise.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: Number | str = 0


@dataclass(frozen=True, eq=False, repr=False)
class RandomRotation(Transform):
    """Turned against the clock by an angle of -`degrees` to `degrees`, or of a given range.

    With `expand` the result is as large as it needs to be, so a resize or crop must follow.
    "nearest" takes torchvision's pixels; "bilinear" is within one level on `uint8` and 4e-5 on
    `float32`, times 1 + the fill beside the image.
    """

    degrees: Number
    interpolation: Sampling = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Number = 0


@dataclass(frozen=True, eq=False, repr=False)
class RandomAffine(Transform):
    """Turned, moved, scaled and sheared; as close to torchvision as `RandomRotation`."""

    degrees: Number
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Number | None = None
    interpolation: Sampling = "nearest"
    fill: Number = 0
    center: Sequence[float] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class RandAugment(Transform):
    """`num_ops` random ops of one strength, on `uint8` images. Equal to torchvision's."""

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Sampling = "nearest"
    fill: Number | None = None


@dataclass(frozen=True, eq=False, repr=False)
class TrivialAugmentWide(Transform):
    """One random op of random strength, on `uint8` images. Equal to torchvision's."""

    num_magnitude_bins: int = 31
    interpolation: Sampling = "nearest"
    fill: Number | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MixUp(Transform):
    """Each row of a batch blended with the one before it, and its label too.

    The last of a loader's transforms. The share comes from Beta(`alpha`, `alpha`), once for each
    batch of all ranks. Labels become `float32` of shape [batch, num_classes]; where the source has
    named classes, `num_classes` may be left out.
    """

    alpha: float = 1.0
    num_classes: int | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CutMix(Transform):
    """A rectangle of each row taken from the row before it, and its label by its area.

    As `MixUp` in all else, for elements of any type.
    """

    alpha: float = 1.0
    num_classes: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class RandomChoice(Transform):
    """`MixUp` or `CutMix`, chosen for each batch; `p` are their shares.

    >>> RandomChoice([CutMix(num_classes=10), MixUp(num_classes=10)], p=[1, 3])
    RandomChoice(transforms=[CutMix(num_classes=10), MixUp(num_classes=10)], p=[1, 3])
    """

    transforms: Sequence[Transform]
    p: Sequence[float] | None = None


@dataclass(frozen=True, eq=False)
class PerBatch:
    """A Python function for whole batches, at the end of a loader's transforms.

    It gets a batch as the loader would hand it over, of NumPy arrays (of files, shards or
    arrays: a dict of them by their fields' names), and returns what takes its place. It runs where the
    batch is made.
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpecError(
                f"PerBatch needs a function, not a {type(self.function).__name__}", key="transforms"
            )


def dtype_name(dtype: Any) -> str:
    """The name of a type of elements, however it was given."""
    if isinstance(dtype, str):
        return dtype
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    return str(numpy.dtype(dtype).name)


def specs(transforms: Iterable[Transform | Mapping[str, Any] | str] | None) -> list[Any]:
    """Ops as a description holds them; one op counts as a list of one."""
    if transforms is None:
        return []
    if isinstance(transforms, Transform | Mapping | str):
        transforms = [transforms]
    return [op.spec() if isinstance(op, Transform) else op for op in transforms]


def apply(
    image: numpy.typing.NDArray[Any],
    transforms: Iterable[Transform | Mapping[str, Any] | str],
    seed: int = 0,
    epoch: int = 0,
    position: int = 0,
    layout: Literal["CHW", "HWC", "channels_last"] = "CHW",
) -> numpy.typing.NDArray[Any]:
    """Runs ops on one image of shape [height, width] or [height, width, channels].

    Random ops draw what they would for the sample at `position` of `epoch` in a loader with `seed`.
    """
    image = numpy.ascontiguousarray(image)
    if image.dtype not in (numpy.uint8, numpy.float32) or image.ndim not in (2, 3):
        raise SpecError(
            f"an image of uint8 or float32 with 2 or 3 axes is needed, not {image.dtype} of {image.shape}"
        )
    height, width, channels = (*image.shape, 1)[:3]
    ops = json.dumps(plain("transforms", specs(transforms)))
    # The engine writes the layouts' names small.
    order = layout if layout == "channels_last" else layout.lower()
    pixels, planar = image.tobytes(), False
    try:
        made, shape, dtype = _native.apply_transforms(
            ops, order, pixels, height, width, channels, planar, image.dtype.name, seed, epoch, position
        )
    except ValueError as error:
        raise SpecError(str(error), key="transforms") from None
    if dtype == "bfloat16":
        import ml_dtypes

        kind = numpy.dtype(ml_dtypes.bfloat16)
    else:
        kind = numpy.dtype(dtype)
    array: numpy.typing.NDArray[Any] = numpy.frombuffer(bytearray(made), kind)
    if layout == "channels_last" and len(shape) == 3:
        # The shape says channels first, the memory has them last.
        array = array.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1)
    return array.reshape(shape)


def drawn(
    size: Sequence[int],
    transforms: Iterable[Transform | Mapping[str, Any] | str],
    seed: int = 0,
    epoch: int = 0,
    position: int = 0,
) -> list[Any]:
    """What random ops draw for the sample at `position` of `epoch`, in torchvision's words.

    `size` is (height, width) or (height, width, channels) of the image. Ops that draw nothing, and
    crops and flips, are None.

    >>> drawn((224, 224), [RandomRotation((17, 17))])
    [{'angle': 17.0}]
    """
    height, width, channels = (*size, 3)[:3]
    ops = json.dumps(plain("transforms", specs(transforms)))
    try:
        text = _native.drawn_transforms(ops, height, width, channels, seed, epoch, position)
    except ValueError as error:
        raise SpecError(str(error), key="transforms") from None
    return list(json.loads(text))


def drawn_mix(
    size: Sequence[int],
    transforms: Iterable[Transform | Mapping[str, Any] | str],
    seed: int = 0,
    epoch: int = 0,
    batch: int = 0,
) -> dict[str, Any]:
    """How the transforms' last op mixes a batch of images of `size` (height, width).

    `lam` is the share that a row keeps of itself; `box` is x1, y1, x2, y2 of CutMix's rectangle, or
    None.
    """
    ops = json.dumps(plain("transforms", specs(transforms)))
    try:
        text = _native.drawn_mix(ops, size[0], size[1], seed, epoch, batch)
    except ValueError as error:
        raise SpecError(str(error), key="transforms") from None
    return dict(json.loads(text))
