"""What is measured: each work is data, a transform, and the loaders that can do it.

Only the standard library is imported: every loader's own environment reads this file.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE = 224
SHORTER = 256
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
#: The small arrays have the shape and the statistics of CIFAR-10.
ARRAYS = 20_000
ARRAY_MEAN = (0.4914, 0.4822, 0.4465)
ARRAY_STD = (0.247, 0.2435, 0.2616)


@dataclass(frozen=True)
class Loader:
    """A contestant: a script below loaders/ and the environment that it runs in."""

    title: str
    script: str
    #: A file of requirements/ without its ending; none for what cargo builds.
    environment: str | None
    #: Further arguments of the script.
    variant: str = ""
    #: Packages whose versions matter.
    packages: tuple[str, ...] = ()
    #: What it does less than torchvision, or otherwise.
    note: str = ""
    workers: int | None = None


TORCH = "rivals/torch"
LESS = "fast DCT, no antialiasing"
LOADERS = {
    "feedline": Loader("feedline", "feedline_loader", "build", packages=("feedline", "numpy")),
    "feedline_one": Loader("feedline, 1 worker", "feedline_loader", "build", workers=1),
    "feedline_indexed": Loader(
        "feedline, crop-indexed",
        "feedline_loader",
        "build",
        "indexed",
        note="files re-cut by `feedline pack`",
    ),
    "feedline_raw": Loader(
        "feedline, packed", "feedline_loader", "build", "raw", note="written by `feedline pack --raw`"
    ),
    "torch": Loader(
        "torch + Pillow", "torch_loader", TORCH, "pillow", packages=("torch", "torchvision", "pillow")
    ),
    "torchvision": Loader("torchvision v2", "torch_loader", TORCH, "v2"),
    "albumentations": Loader(
        "Albumentations",
        "torch_loader",
        TORCH,
        "albumentations",
        packages=("albumentations", "opencv-python-headless"),
        note="no antialiasing",
    ),
    "torch_tuned": Loader(
        "torch, tuned by hand", "torch_loader", TORCH, "tuned", packages=("simplejpeg",), note=LESS
    ),
    "torch_arrays": Loader("torch + NumPy", "torch_loader", TORCH, "arrays", packages=("torch",)),
    "torch_batched": Loader("torch, `__getitems__`", "torch_loader", TORCH, "batched"),
    "spdl": Loader("SPDL", "spdl_loader", TORCH, packages=("spdl",), note=LESS),
    "tfdata": Loader(
        "tf.data",
        "tfdata_loader",
        "rivals/tensorflow",
        packages=("tensorflow-cpu",),
        note="fast DCT, plain upsampling, no antialiasing",
    ),
    "dali": Loader(
        "DALI CPU", "dali_loader", "rivals/dali", packages=("nvidia-dali-cuda120",), note="fast DCT"
    ),
    "ffcv": Loader(
        "FFCV",
        "ffcv_loader",
        "rivals/ffcv",
        "jpg",
        packages=("ffcv",),
        note="fast DCT, area filter; JPEGs encoded anew, channels last",
    ),
    "ffcv_raw": Loader(
        "FFCV raw", "ffcv_loader", "rivals/ffcv", "raw", packages=("ffcv",), note="area filter, channels last"
    ),
    "turboloader": Loader(
        "TurboLoader",
        "turboloader_loader",
        "rivals/turboloader",
        "tar",
        packages=("turboloader",),
        note="decodes at the scale that fits the whole image: small crops are blurred",
    ),
    "turboloader_raw": Loader(
        "TurboLoader tbl",
        "turboloader_loader",
        "rivals/turboloader",
        "tbl",
        packages=("turboloader",),
        note="photos squashed to 256x256",
    ),
    "limit_full": Loader("libjpeg-turbo: whole image", "limit", None, "full", note="decoding only"),
    "limit_crop": Loader("libjpeg-turbo: crop", "limit", None, "crop", note="decoding only"),
    "limit_scaled": Loader("libjpeg-turbo: crop, scaled", "limit", None, "scaled", note="decoding only"),
    "limit_entropy": Loader("libjpeg-turbo: at 1/8", "limit", None, "entropy", note="entropy decoding"),
}
LIMITS = ("limit_full", "limit_crop", "limit_scaled", "limit_entropy")
OURS = ("feedline", "feedline_one", "feedline_indexed", "feedline_raw")
RIVALS = ("torch", "torchvision", "albumentations", "torch_tuned", "spdl", "tfdata", "dali", "ffcv")


@dataclass(frozen=True)
class Work:
    """One contest."""

    title: str
    #: "standard", "large" or "sample" photos, or "arrays" in memory.
    data: str
    #: "train", "eval" or "arrays".
    transform: str
    loaders: tuple[str, ...]
    #: The loader that the ratios are to.
    base: str = "torch"
    batch: int = 64
    #: Whether the page cache is emptied before every epoch.
    cold: bool = False


TRAIN = "RandomResizedCrop(224), flip, normalise to float32"
WORKS = {
    "train": Work(
        f"Standard photos: {TRAIN}",
        "standard",
        "train",
        ("feedline", "feedline_indexed", "feedline_one", *RIVALS, "turboloader", *LIMITS),
    ),
    # A quicker look at one bar; a full run has it in `train`, beside everything else.
    "indexed": Work(
        f"Standard photos, crop-indexed: {TRAIN}",
        "standard",
        "train",
        ("feedline", "feedline_indexed", "torch", "torch_tuned", "tfdata", "dali", "ffcv", "turboloader"),
    ),
    "eval": Work(
        "Standard photos: Resize(256), CenterCrop(224), normalise to float32",
        "standard",
        "eval",
        ("feedline", *RIVALS),
    ),
    "large": Work(
        f"Large photos: {TRAIN}",
        "large",
        "train",
        ("feedline", *RIVALS, "turboloader", "limit_full", "limit_crop", "limit_scaled"),
    ),
    "arrays": Work(
        "20,000 arrays of 3x32x32: RandomCrop(32, padding 4), flip, normalise to float32",
        "arrays",
        "arrays",
        ("feedline", "torch_arrays", "torch_batched", "spdl", "tfdata", "dali", "ffcv"),
        base="torch_arrays",
        batch=512,
    ),
    "raw": Work(
        f"Decoded pixels kept at shorter side 256: {TRAIN}",
        "standard",
        "train",
        ("feedline_raw", "torch", "ffcv_raw", "turboloader_raw"),
    ),
    "cold": Work(
        f"Standard photos, nothing in the page cache: {TRAIN}",
        "standard",
        "train",
        ("feedline", "torch", "tfdata"),
        cold=True,
    ),
    "sample": Work(f"Sample photos: {TRAIN}", "sample", "train", ("feedline", "torch", "torchvision")),
}
DEFAULT = tuple(name for name in WORKS if name != "indexed")
