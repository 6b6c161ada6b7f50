"""Whether a data set's code can end the process that it runs in, as far as its text shows.

A crash in native code cannot be caught. In a worker it is an error with the sample's name; in the
program it is the end of the program. So where the program leaves it open who runs the code, its own
threads run only code whose native parts are all known: the interpreter's and those of libraries in
such wide use that their crashes are rare and soon fixed. That is a matter of judgement and not of proof:
who must be sure asks for processes, and then no sample runs in the program.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

# Video decoders, LMDB and bindings made with ctypes or cffi are not among them on purpose.
KNOWN = frozenset(
    {
        *("PIL", "albumentations", "cv2", "kornia", "matplotlib", "skimage", "tifffile", "timm"),
        *(
            "jax",
            "jaxlib",
            "numba",
            "numpy",
            "scipy",
            "sklearn",
            "torch",
            "torchaudio",
            "torchdata",
            "torchvision",
        ),
        *("blosc", "dask", "fsspec", "h5py", "lz4", "numcodecs", "xarray", "zarr", "zstandard"),
        *("datasets", "pandas", "polars", "pyarrow", "safetensors", "tokenizers", "transformers"),
        *("librosa", "msgpack", "orjson", "regex", "sentencepiece", "soundfile", "tiktoken", "yaml"),
        *("cloudpickle", "einops", "feedline", "tqdm"),
    }
)
_FOREIGN = ("ctypes", "_ctypes", "cffi", "_cffi_backend")
_ENDS = (os._exit, os.abort, os.kill, os.killpg, signal.raise_signal)
# Things looked at: far more than data sets of people, and some milliseconds.
_MOST = 2000
_IMPORT = dis.opmap["IMPORT_NAME"]
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType)


def ends_processes(things: list[Any]) -> str | None:
    """Names what in the code of these objects may end its process, or that nothing is known of."""
    todo = [(thing, 0) for thing in things]
    seen: dict[int, Any] = {}
    while todo and len(seen) < _MOST:
        thing, depth = todo.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        found = _named(thing)
        if found is not None:
            return found
        if isinstance(thing, _Unknown) or _is_known(_module_of(thing)):
            continue
        if isinstance(thing, types.FunctionType):
            todo.extend((one, depth) for one in _in_function(thing))
        elif isinstance(thing, types.MethodType):
            todo += [(thing.__self__, depth), (thing.__func__, depth)]
        elif isinstance(thing, type):
            todo.extend((one, depth) for one in _in_class(thing))
        elif not isinstance(thing, _CODE) and depth < 4:
            todo.extend((one, depth + 1) for one in _in_object(thing))
    return None


class _Unknown:
    """A module that is imported only when a sample is made."""

    def __init__(self, name: str) -> None:
        self.name = name


def _module_of(thing: Any) -> str:
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    if isinstance(thing, types.FunctionType | types.BuiltinFunctionType | type):
        return thing.__module__ or ""
    # What an object of a known class holds may still be the program's own.
    return ""


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in _FOREIGN and (top in KNOWN or top in sys.stdlib_module_names)


def _named(thing: Any) -> str | None:
    if isinstance(thing, _Unknown):
        return None if _is_plain_python(thing.name) else f"{thing.name}, which is still to be imported"
    if isinstance(thing, types.BuiltinFunctionType):
        crashes = thing.__module__ == "faulthandler" and thing.__name__.startswith("_")
        if crashes or thing in _ENDS:
            return f"{thing.__module__}.{thing.__name__}, which can end its process"
    module = _module_of(thing)
    if not module or _is_known(module):
        return None
    top = module.partition(".")[0]
    if top in _FOREIGN:
        return f"{top}, so native code of its own"
    here = sys.modules.get(module)
    if is_native(here) or (_is_installed(here) and _has_native_parts(top, len(sys.modules))):
        return f"{top}, whose native code is not known to be safe"
    return None


def is_native(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES))


def _is_installed(module: types.ModuleType | None) -> bool:
    """Whether a module is a library's: the program's own code is followed name by name."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and ("site-packages" in file or "dist-packages" in file)


@functools.lru_cache
def _has_native_parts(top: str, _loaded: int) -> bool:
    for name, module in list(sys.modules.items()):
        if name == top or name.startswith(f"{top}."):
            held = getattr(module, "__dict__", {})
            if is_native(module) or any(one in held for one in _FOREIGN):
                return True
    return False


def _is_plain_python(name: str) -> bool:
    """Whether a module that is not loaded yet is known, or a file of the program's own."""
    if _is_known(name):
        return True
    try:
        found = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        # It cannot be imported: an error, and not the end of a process.
        return True
    origin = None if found is None else found.origin
    return origin is None or not ("site-packages" in origin or origin.endswith(tuple(EXTENSION_SUFFIXES)))


def _in_function(function: types.FunctionType) -> Iterator[Any]:
    """What a function's code names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    codes, names_of = [function.__code__], function.__globals__
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        named = [names_of[name] for name in code.co_names if name in names_of]
        if _IMPORT in code.co_code[::2]:
            for step in dis.get_instructions(code):
                if step.opname == "IMPORT_NAME" and step.argval:
                    named.append(sys.modules.get(step.argval) or _Unknown(step.argval))
        for thing in named:
            if isinstance(thing, types.ModuleType):
                yield thing
                # Not getattr(): a module may import what it is asked for.
                inside = vars(thing)
                for name in code.co_names:
                    if isinstance(inside.get(name), _CODE):
                        yield inside[name]
            elif isinstance(thing, (*_CODE, _Unknown)) or hasattr(thing, "__dict__"):
                yield thing


def _in_class(kind: type) -> Iterator[Any]:
    yield from kind.__mro__[1:-1]
    for value in list(vars(kind).values()):
        if isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield value.fget
        elif isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            yield value


def _in_object(thing: Any) -> Iterator[Any]:
    yield type(thing)
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, list | tuple) and len(thing) <= 20:
        yield from thing
    elif isinstance(thing, dict) and len(thing) <= 20:
        yield from thing.values()
    yield from list(getattr(thing, "__dict__", {}).values())[:100]
