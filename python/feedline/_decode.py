"""Decodes one image by itself."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy
import numpy.typing

from feedline import _native
from feedline._errors import SampleError, SpecError


def decode_image(
    data: bytes | str | os.PathLike[str],
    mode: Literal["rgb", "gray"] = "rgb",
    *,
    exif_orientation: bool = False,
    max_pixels: int | None = None,
    allow_truncated: bool = False,
    allow_damaged: bool = False,
) -> numpy.typing.NDArray[Any]:
    """The pixels of an image, given as its bytes or its path, as uint8 [height, width, channels].

    The same decoders and limits as in a loader; the parameters are those of its `decode`.
    """
    if mode not in ("rgb", "gray"):
        allowed = '"rgb", "gray"'
        raise SpecError(f"mode = {mode!r}: is not allowed; allowed: {allowed}", key="mode", allowed=allowed)
    path = None
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        with open(data, "rb") as file:
            data = file.read()
    try:
        pixels, shape = _native.decode_image(
            data, mode, exif_orientation, max_pixels, allow_truncated, allow_damaged
        )
    except ValueError as error:
        place = "" if path is None else f" {path}"
        text = f"cannot decode{place}: {error}"
        raise SampleError(text, path=path, stage="decode", reason=str(error)) from None
    return numpy.frombuffer(bytearray(pixels), numpy.uint8).reshape(shape)
