"""Images as the program's functions take them and give them back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy
import numpy.typing

from feedline._native import image_format

Takes = Literal["array", "tensor", "tv_tensor", "pil"]
Axes = Literal["HWC", "CHW"]

_CHANNELS = (1, 3, 4)
_TORCHVISION = ("torchvision.transforms.",)
# They take what Pillow opens; the second takes tensors too, but silently leaves them as they are.
_FROM_PIL = ("torchvision.transforms.transforms.PILToTensor", "torchvision.transforms.transforms.ToTensor")
# Sizes of the headers that follow the first 14 bytes of a BMP.
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
# Pillow's kinds of pixels that are no image as they are, and what the decoder makes of such a file.
_CONVERTED = {
    "1": "L",
    "P": "RGB",
    "PA": "RGBA",
    "LA": "RGBA",
    "La": "RGBA",
    "RGBa": "RGBA",
    "RGBX": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
    "HSV": "RGB",
}


def as_array(value: Any) -> numpy.typing.NDArray[Any] | None:
    """A NumPy array, a tensor or a Pillow image as a NumPy array; None for anything else."""
    if isinstance(value, numpy.ndarray):
        return None if value.dtype.hasobject else value
    if isinstance(value, numpy.generic | type):
        return None
    if is_pillow(value):
        mode = "RGBA" if value.mode == "P" and "transparency" in value.info else _CONVERTED.get(value.mode)
        return numpy.asarray(value if mode is None else value.convert(mode))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        array: numpy.typing.NDArray[Any] = value.detach().cpu().numpy()
        return array
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        array = numpy.asarray(value)
        return None if array.dtype.hasobject else array
    return None


def is_pillow(value: Any) -> bool:
    """Whether this is an image of Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def axes_of(shape: tuple[int, ...], *, channels_first: bool) -> Axes | None:
    """How an image of three axes lies, by the axis that can be its channels; None if none can.

    `channels_first` decides where both ends can. The native ops read arrays by the same rule.
    """
    if len(shape) != 3:
        return None
    first, last = shape[0] in _CHANNELS, shape[2] in _CHANNELS
    if first and (channels_first or not last):
        return "CHW"
    return "HWC" if last else None


def for_functions(value: Any, *, channels_first: bool) -> Any:
    """An image as [height, width, channels] in NumPy; what is not an image stays as it is.

    Two axes are an image where the elements are bytes; of floats they may be anything.
    """
    array = as_array(value)
    if array is None:
        return value
    if array.ndim == 2 and (array.dtype == numpy.uint8 or is_pillow(value)):
        return array[:, :, None]
    axes = axes_of(array.shape, channels_first=channels_first and not is_pillow(value))
    if axes is None:
        return value
    return array.transpose(1, 2, 0) if axes == "CHW" else array


def arranged(value: Any, axes: Axes, given: Axes | None, *, strict: bool) -> Any:
    """What a function returned, as an array with these axes; what is not an image stays as it is.

    `given` says how its axes lie where that is known. `strict` refuses three axes of which none can
    be the channels.
    """
    array = as_array(value)
    if array is None or array.ndim != 3:
        return value
    given = given or axes_of(array.shape, channels_first=False)
    if given is None and strict:
        raise ValueError(
            f'layout "channels_last" needs an image with 1, 3 or 4 channels, and got {list(array.shape)}'
        )
    if given is None or given == axes:
        return array
    return array.transpose((2, 0, 1) if axes == "CHW" else (1, 2, 0))


def is_encoded(value: Any) -> bool:
    """Whether these are the bytes of an image file."""
    start = bytes(value[:18])
    name = image_format(start)
    # The first two bytes of a BMP are ordinary letters.
    return name is not None and (name != "BMP" or int.from_bytes(start[14:18], "little") in _BMP_HEADERS)


def takes(function: Any) -> Takes:
    """What a callable has to be given: torchvision's ops pass NumPy arrays through, unchanged and
    without a word, and modules of torch take tensors. Nothing is imported to find out."""
    function = _inside(function)
    torch = sys.modules.get("torch")
    of_torchvision = _is_torchvision(function)
    if torch is None or not (of_torchvision or isinstance(function, torch.nn.Module)):
        return "array"
    if any(_is_from_pil(op) for op in _tree(function)):
        return "pil"
    second = sys.modules.get("torchvision.transforms.v2")
    if second is not None and isinstance(function, second.Transform):
        return "tv_tensor"
    return "tensor"


def handed(image: Any, wanted: Takes) -> Any:
    """An image [height, width, channels] as a callable of that kind takes it; a module of torch gets
    anything else as it is."""
    if wanted == "array":
        return image
    import torch

    array = as_array(image)
    if array is None or (wanted != "tensor" and not _has_channels(array)):
        shape = "" if array is None else f" of shape {list(array.shape)}"
        raise TypeError(f"takes images of 1, 3 or 4 channels, and got a {type(image).__name__}{shape}")
    if wanted == "pil":
        return _pillow(array)
    if _has_channels(array):
        array = array.transpose(2, 0, 1)
    # torch shares what it is given, and refuses negative steps; the array may be the data set's own.
    tensor = torch.from_numpy(array.copy("C"))
    if wanted == "tensor":
        return tensor
    from torchvision import tv_tensors

    return tv_tensors.Image(tensor)


def called(function: Callable[[Any], Any], wanted: Takes, image: Any) -> tuple[Any, Axes | None]:
    """What a callable makes of an image, and how its axes lie if that is known."""
    if wanted == "array":
        return function(image), None
    import torch

    with torch.no_grad():
        result = function(handed(image, wanted))
    turned = isinstance(result, torch.Tensor) and isinstance(image, numpy.ndarray) and _has_channels(image)
    return result, "CHW" if turned else None


def _has_channels(array: numpy.typing.NDArray[Any]) -> bool:
    """Whether this is an image [height, width, channels]."""
    return array.ndim == 3 and array.shape[2] in _CHANNELS


def _pillow(image: numpy.typing.NDArray[Any]) -> Any:
    from PIL import Image

    if image.dtype != numpy.uint8:
        raise TypeError(f"ToTensor and PILToTensor take uint8 images, and got {image.dtype}")
    return Image.fromarray(numpy.ascontiguousarray(image[:, :, 0] if image.shape[2] == 1 else image))


def _inside(function: Any) -> Any:
    """The object behind a partial function or a bound method."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif getattr(function, "__self__", None) is not None and hasattr(function, "__func__"):
            function = function.__self__
        else:
            return function


def _is_torchvision(thing: Any) -> bool:
    return any(f"{kind.__module__}.".startswith(_TORCHVISION) for kind in type(thing).__mro__)


def _is_from_pil(op: Any) -> bool:
    names = [(kind.__module__, kind.__qualname__) for kind in type(op).__mro__]
    return any(
        f"{module}.{name}" in _FROM_PIL
        or (name == "ToTensor" and module.startswith("torchvision.transforms.v2"))
        for module, name in names
    )


def _tree(function: Any) -> Iterator[Any]:
    """A callable and all that its containers hold."""
    seen: set[int] = set()
    open_ones = [function]
    while open_ones:
        op = open_ones.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        yield op
        # torchvision's containers keep a plain list; torch's modules have children.
        within = getattr(op, "transforms", ())
        open_ones.extend(within if isinstance(within, list | tuple) else [])
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(op, torch.nn.Module):
            open_ones.extend(op.children())
