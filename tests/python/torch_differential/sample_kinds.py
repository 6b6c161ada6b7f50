"""One function per kind of sample: what a data set may return, with the number of the sample in it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

Kind = Callable[[int], Any]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def _typed(number: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.tensor([[number, 0.5, 100.25], [1, 0, 3 * number]], dtype=torch.float64)
    return values.to(dtype)


FLOATS8 = [getattr(torch, name) for name in sorted(dir(torch)) if name.startswith("float8_")]
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64,
    torch.complex32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16,
    torch.uint32, torch.uint64, torch.bool, *FLOATS8,
]  # fmt: skip
for _dtype in DTYPES:
    KINDS[str(_dtype)] = lambda number, dtype=_dtype: _typed(number, dtype)

NUMPY_DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">i4", ">f8",
    "f16", "U4", "S4", "O", "M8[s]", "m8[ms]", "V4",
]  # fmt: skip
for _name in NUMPY_DTYPES:
    KINDS[f"numpy {_name}"] = lambda number, name=_name: np.array([[number, 1], [2, 3]]).astype(name)
for _name in ("?", "i4", "u1", "f2", "f8", "c8", "U4", "S4", "M8[s]"):
    KINDS[f"numpy scalar {_name}"] = lambda number, name=_name: np.array([number]).astype(name)[0]


@kind
def nan_and_infinity(number: int) -> torch.Tensor:
    return torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, number])


@kind
def torchvisions_own(number: int) -> dict[str, Any]:
    return {
        "image": tv_tensors.Image(torch.full((3, 4, 5), number, dtype=torch.uint8)),
        "turned": tv_tensors.Image(torch.arange(60.0).reshape(5, 4, 3) + number).permute(2, 1, 0),
        "mask": tv_tensors.Mask(torch.full((4, 5), number)),
        "video": tv_tensors.Video(torch.zeros(2, 3, 4, 5) + number),
        "boxes": tv_tensors.BoundingBoxes([[0, 0, number, 2]], format="XYXY", canvas_size=(4, 5)),
        "wrapped": tv_tensors.wrap(torch.full((3, 4), number), like=tv_tensors.Mask(torch.zeros(3, 1))),
    }


@kind
def torchvisions_of_two_sizes(number: int) -> Any:
    return tv_tensors.Image(torch.zeros(3, 4, 5 + number % 2))


@kind
def torchvisions_and_plain(number: int) -> Any:
    values = torch.full((3, 4, 5), float(number))
    return tv_tensors.Image(values) if number % 2 else values


@kind
def zero_dimensional(number: int) -> torch.Tensor:
    return torch.tensor(number)


@kind
def zero_dimensional_array(number: int) -> Any:
    return np.array(number, dtype=np.float32)


@kind
def empty(number: int) -> torch.Tensor:
    return torch.zeros(0, 3)


@kind
def empty_array(number: int) -> Any:
    return np.zeros((2, 0, 3), dtype=np.int16)


@kind
def transposed(number: int) -> torch.Tensor:
    return (torch.arange(12).reshape(3, 4) + number).T


@kind
def strided(number: int) -> torch.Tensor:
    return (torch.arange(40) + number)[3:33:4]


@kind
def expanded(number: int) -> torch.Tensor:
    return torch.tensor([[number], [number + 1]]).expand(2, 5)


@kind
def nested_tensor(number: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.full((number + 1, 2), 3.0), torch.arange(4.0).view(2, 2)])


@kind
def nested_tensor_transposed(number: int) -> torch.Tensor:
    return nested_tensor(number).transpose(1, 2)


@kind
def nested_tensor_jagged(number: int) -> torch.Tensor:
    parts = [torch.full((number + 1, 2), 3.0), torch.arange(4.0).view(2, 2)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@kind
def channels_last(number: int) -> torch.Tensor:
    return (torch.arange(24.0) + number).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)[0]


@kind
def array_with_negative_strides(number: int) -> Any:
    return (np.arange(6) + number)[::-1]


@kind
def array_in_fortran_order(number: int) -> Any:
    return np.asfortranarray(np.arange(6).reshape(2, 3) + number)


@kind
def conjugate(number: int) -> torch.Tensor:
    return torch.tensor([1 + 2j, number - 1j]).conj()


@kind
def negative_view(number: int) -> torch.Tensor:
    return torch.tensor([1 + 2j, number - 1j]).conj().imag


@kind
def large(number: int) -> torch.Tensor:
    return torch.arange(300_000, dtype=torch.int32) * (number + 1)


@kind
def python_int(number: int) -> int:
    return number - 1


@kind
def python_huge_int(number: int) -> int:
    return 2**62 + number


@kind
def python_int_beyond_64_bits(number: int) -> int:
    return 2**70 + number


@kind
def python_float(number: int) -> float:
    return number / 3


@kind
def python_nan(number: int) -> float:
    return float("nan")


@kind
def python_bool(number: int) -> bool:
    return number % 2 == 0


@kind
def python_complex(number: int) -> complex:
    return complex(number, 1)


@kind
def text(number: int) -> str:
    return f"sample {number} \N{GREEK SMALL LETTER ALPHA}\0"


@kind
def lone_surrogate(number: int) -> str:
    return f"{number}\ud800"


@kind
def some_bytes(number: int) -> bytes:
    return bytes([number, 0, 255])


@kind
def byte_array(number: int) -> bytearray:
    return bytearray([number, 1])


@kind
def none(number: int) -> None:
    return None


@kind
def none_in_a_dict(number: int) -> dict[str, Any]:
    return {"image": torch.tensor(number), "mask": None}


@kind
def mixed_numbers(number: int) -> float:
    return number if number % 2 else number / 2


@kind
def mixed_shapes(number: int) -> torch.Tensor:
    return torch.zeros(number + 1)


@kind
def mixed_dtypes(number: int) -> torch.Tensor:
    return torch.zeros(2, dtype=torch.float32 if number % 2 else torch.float64)


@kind
def mixed_classes(number: int) -> Any:
    return torch.zeros(2) if number % 2 else {"a": 1}


@kind
def ragged_lists(number: int) -> list[int]:
    return list(range(number + 1))


@kind
def keys_that_differ(number: int) -> dict[str, int]:
    return {"a": 1, f"key {number}": 2}


@kind
def keys_that_later_samples_add(number: int) -> dict[str, int]:
    return {"a": 1, **({"b": 2} if number else {})}


@kind
def pair(number: int) -> tuple[torch.Tensor, int]:
    return torch.full((2, 3), float(number)), number


@kind
def list_of_things(number: int) -> list[Any]:
    return [torch.tensor(number), "a", number, [number, b"c"]]


@kind
def empty_tuple(number: int) -> tuple[()]:
    return ()


@kind
def empty_dict(number: int) -> dict[str, int]:
    return {}


@kind
def numbers_as_range(number: int) -> range:
    return range(number, number + 3)


@kind
def deep_queue(number: int) -> Any:
    return collections.deque([number, 2])


@kind
def nested(number: int) -> dict[Any, Any]:
    tensor = torch.arange(3) + number
    return {
        "image": np.full((2, 2), number, dtype=np.uint8),
        "target": {"boxes": (tensor, tensor * 2), 7: [number, {"x": float(number)}]},
        ("a", 1): Point(tensor, Point(number, "name")),
    }


class Point(NamedTuple):
    x: Any
    y: Any


Typed = collections.namedtuple("Typed", ["value", "unit"])


class PointWithMethods(Point):
    def total(self) -> Any:
        return self.x + self.y


@kind
def named_tuple(number: int) -> Point:
    return Point(torch.tensor(number), number)


@kind
def named_tuple_of_collections(number: int) -> Any:
    return Typed(np.float32(number), "metre")


@kind
def named_tuple_subclass(number: int) -> PointWithMethods:
    return PointWithMethods(number, number / 2)


@kind
def ordered_dict(number: int) -> Any:
    return collections.OrderedDict([("z", number), ("a", torch.tensor(number))])


@kind
def default_dict(number: int) -> Any:
    return collections.defaultdict(list, {"a": number})


@kind
def counter(number: int) -> Any:
    return collections.Counter(a=number, b=2)


class Frozen(Mapping[str, Any]):
    """A mapping that can be made from a dict, but not updated."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.items_inside = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_inside[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_inside)

    def __len__(self) -> int:
        return len(self.items_inside)


class Annotated(MutableMapping[str, Any]):
    """A mutable mapping with more in it than its items."""

    def __init__(self, note: str, **items: Any) -> None:
        self.note = note
        self.inside = items

    def __getitem__(self, key: str) -> Any:
        return self.inside[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.inside = {**self.inside, key: value}

    def __delitem__(self, key: str) -> None:
        del self.inside[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inside)

    def __len__(self) -> int:
        return len(self.inside)


class Awkward(Frozen):
    """A mapping that nothing can be made from."""

    def __init__(self, number: int, unit: str) -> None:
        super().__init__({"value": number, "unit": unit})


class Row(Sequence[Any]):
    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)


class Remembering(list[Any]):
    note = "class"


@kind
def frozen_mapping(number: int) -> Frozen:
    return Frozen({"a": number, "b": torch.tensor(number)})


@kind
def annotated_mapping(number: int) -> Annotated:
    return Annotated(f"note {number}", a=number, b="text")


@kind
def awkward_mapping(number: int) -> Awkward:
    return Awkward(number, "metre")


@kind
def custom_sequence(number: int) -> Row:
    return Row([number, torch.tensor(number)])


@kind
def list_subclass(number: int) -> Remembering:
    made = Remembering([number, number / 2])
    made.note = f"note {number}"
    return made


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    name: str


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 3
    HIGH = 7


class Metres(float):
    pass


class Name(str):
    pass


@kind
def data_class(number: int) -> Record:
    return Record(torch.full((2,), number), f"record {number}")


@kind
def enumeration(number: int) -> Colour:
    return Colour(number % 2 + 1)


@kind
def integer_enumeration(number: int) -> Level:
    return Level.HIGH if number else Level.LOW


@kind
def float_subclass(number: int) -> Metres:
    return Metres(number)


@kind
def text_subclass(number: int) -> Name:
    return Name(f"name {number}")


@kind
def decimal(number: int) -> Decimal:
    return Decimal(number) / 3


@kind
def fraction(number: int) -> Fraction:
    return Fraction(number, 7)


@kind
def some_set(number: int) -> set[int]:
    return {number}


@kind
def a_class(number: int) -> type:
    return Record


@kind
def picture(number: int) -> Image.Image:
    return Image.new("RGB", (3, 2), (number, 10, 20))


@kind
def sparse_coo(number: int) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, number], (2, 2), check_invariants=True)


@kind
def sparse_csr(number: int) -> torch.Tensor:
    return torch.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, number], (2, 2), check_invariants=True)


@kind
def sparse_csc(number: int) -> torch.Tensor:
    return torch.sparse_csc_tensor([0, 1, 2], [1, 0], [1.0, number], (2, 2), check_invariants=True)


@kind
def meta(number: int) -> torch.Tensor:
    return torch.empty(2, number * 0 + 3, device="meta")


@kind
def quantised(number: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([1.0, number]), 0.5, 3, torch.qint8)


@kind
def leaf_with_gradient(number: int) -> torch.Tensor:
    return torch.tensor([1.0, number], requires_grad=True)


@kind
def parameter(number: int) -> torch.Tensor:
    return torch.nn.Parameter(torch.tensor([1.0, number]))


class Labelled(torch.Tensor):
    pass


@kind
def tensor_subclass(number: int) -> torch.Tensor:
    return torch.tensor([1.0, number]).as_subclass(Labelled)


@kind
def masked_array(number: int) -> Any:
    return np.ma.array([1, number], mask=[True, False])


@kind
def matrix_subclass(number: int) -> Any:
    return np.array([[1, number]]).view(np.recarray)


@kind
def structured_array(number: int) -> Any:
    return np.array([(number, 1.5)], dtype=[("a", "i4"), ("b", "f8")])


@kind
def read_only_array(number: int) -> Any:
    made = np.arange(3) + number
    made.flags.writeable = False
    return made


@kind
def size(number: int) -> torch.Size:
    return torch.Size([number, 2])


@kind
def a_dtype(number: int) -> torch.dtype:
    return torch.float32


@kind
def a_device(number: int) -> torch.device:
    return torch.device("cpu")


@kind
def a_function(number: int) -> Any:
    return a_device


class Token:
    """Has an entry in torch's map of collate functions."""

    def __init__(self, number: int) -> None:
        self.number = number


@kind
def registered_class(number: int) -> Token:
    return Token(number)


@kind
def registered_class_in_a_dict(number: int) -> dict[str, Any]:
    return {"token": Token(number), "x": torch.tensor(number)}


def collate_tokens(batch: Sequence[Token], *, collate_fn_map: Any = None) -> Record:
    return Record(torch.tensor([token.number for token in batch]), "tokens")


def view_of_memory(number: int) -> memoryview:
    return memoryview(bytes([number, 1]))


def generator(number: int) -> Iterator[int]:
    yield number


def lock(number: int) -> Any:
    return threading.Lock()


#: What no pickle takes: a torch worker's batch is lost, and the loader waits for ever.
UNSENDABLE: dict[str, Kind] = {"view_of_memory": view_of_memory, "generator": generator, "lock": lock}


class Gallery:
    """Sample `(kind, number)`; one loader shows them all, so that its processes start once."""

    def __getitem__(self, key: tuple[str, int]) -> Any:
        name, number = key
        return (KINDS.get(name) or UNSENDABLE[name])(number)
