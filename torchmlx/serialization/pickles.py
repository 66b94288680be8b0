"""Pickles that hold tensors: torch's names in them, and reading them without running code.

torch's pickles name functions and classes by where torch keeps them (`torch._utils
_rebuild_tensor_v2`). Ours are written with the same names, so that either side reads the other's.

`RestrictedUnpickler` is what weights_only=True means: it builds plain data, and calls nothing but
the few functions below and what `add_safe_globals` was given. Opcodes that could reach anything
else are absent from its table. Source: PyTorch, torch/_weights_only_unpickler.py (semantics).
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import pickle
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..core import dtype as dtypes
from ..core.device import device
from ..core.dtype import dtype
from ..core.layout import Size
from ..core.tensor import Tensor
from ..errors import InputError
from ..nn.parameter import Parameter


class LoadError(InputError, RuntimeError, pickle.UnpicklingError):
    """A file that torch.load cannot read, or refuses to: what is wrong, and what to do."""


class Name:
    """A global that a pickle names and that need not exist here, such as torch.FloatStorage."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *_: Any) -> None:
        raise TypeError(f"{self.module}.{self.name} exists in pickles only")


class StorageType(Name):
    """What pickles name a storage of one dtype by; torch.UntypedStorage counts bytes."""

    def __init__(self, module: str, name: str, of: dtype) -> None:
        super().__init__(module, name)
        self.dtype = of


_STORAGES = {
    "Double": dtypes.float64, "Float": dtypes.float32, "Half": dtypes.float16,
    "BFloat16": dtypes.bfloat16, "Long": dtypes.int64, "Int": dtypes.int32, "Short": dtypes.int16,
    "Char": dtypes.int8, "Byte": dtypes.uint8, "Bool": dtypes.bool_,
    "ComplexFloat": dtypes.complex64,
}  # fmt: skip
STORAGE_OF = {d: StorageType("torch", f"{name}Storage", d) for name, d in _STORAGES.items()}
UNTYPED = StorageType("torch.storage", "UntypedStorage", dtypes.uint8)

# Python's own, written in Python: what an opcode does can be replaced there.
_PlainPickler: Any = pickle._Pickler  # pyright: ignore[reportAttributeAccessIssue]
_PlainUnpickler: Any = pickle._Unpickler  # pyright: ignore[reportAttributeAccessIssue]

# Functions that make a tensor out of a storage; loading.py fills them in.
REBUILD: dict[str, Callable[..., Any]] = {}


def _set_of(items: Iterable = ()) -> set:
    return set(items)


def _bytearray_of(content: bytes = b"") -> bytearray:
    """Not of a size: eight bytes of a pickle could ask for all memory."""
    return bytearray(bytes(memoryview(content)))


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise LoadError(f"bytes encoded as {encoding!r} in a pickle: only latin1 is allowed")
    return codecs.encode(text, "latin1")


def _rebuild_parameter(data: Tensor, requires_grad: bool, hooks: Any) -> Parameter:
    return Parameter(data, requires_grad)


def _rebuild_parameter_with_state(data, requires_grad, hooks, state) -> Parameter:
    return _with_state(Parameter(data, requires_grad), state)


def _with_state(tensor: Any, state: Any) -> Any:
    """`tensor` with the attributes that were set on it: a dictionary, perhaps in a pair."""
    attributes = state[0] if isinstance(state, tuple) else state
    for name, value in (attributes or {}).items():
        if not isinstance(name, str) or name.startswith("_") or hasattr(Tensor, name):
            raise LoadError(f"a pickled tensor would set its attribute {name!r}")
        setattr(tensor, name, value)
    return tensor


def _rebuild_from_type_v2(function, kind, arguments, state) -> Tensor:
    if function not in REBUILD.values():
        raise LoadError("a pickled tensor is made by a function that makes no tensors")
    return _with_state(function(*arguments), state)


def known_globals() -> dict[str, Any]:
    """What "module.name" means in a pickle, where reading it is harmless."""
    found: dict[str, Any] = {f"torch.{d.name}": d for d in dtypes.ALL}
    found |= {f"torch.{s.name}": s for s in STORAGE_OF.values()}
    found |= {"torch.storage.UntypedStorage": UNTYPED, "torch.UntypedStorage": UNTYPED}
    found |= {f"torch._utils.{name}": function for name, function in REBUILD.items()}
    found |= {
        "torch._utils._rebuild_parameter": _rebuild_parameter,
        "torch._utils._rebuild_parameter_with_state": _rebuild_parameter_with_state,
        "torch._tensor._rebuild_from_type_v2": _rebuild_from_type_v2,
        "torch.Size": Size,
        "torch.device": device,
        "torch.Tensor": Tensor,
        "torch._tensor.Tensor": Tensor,
        "torch.nn.parameter.Parameter": Parameter,
        "collections.OrderedDict": OrderedDict,
        "collections.Counter": Counter,
        "_codecs.encode": _encode,
    }
    for builtins in ("builtins", "__builtin__"):
        found |= {f"{builtins}.set": _set_of, f"{builtins}.bytearray": _bytearray_of}
        found |= {f"{builtins}.complex": complex}
    return found


# ---- what weights_only=True allows beyond that

_safe: dict[str, Any] = {}


def _key(item: Any) -> tuple[str, Any]:
    if isinstance(item, tuple):
        found, name = item
        return name, found
    return f"{torch_name(item.__module__)}.{item.__qualname__}", item


def add_safe_globals(safe_globals: list) -> None:
    """Let torch.load(weights_only=True) use these classes and functions.

    An entry is one, or (it, "module.name as the pickle has it"). torch.serialization.
    """
    _safe.update(map(_key, safe_globals))


def get_safe_globals() -> list:
    """What `add_safe_globals` was given. torch.serialization.get_safe_globals."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Allow nothing more than the defaults. torch.serialization.clear_safe_globals."""
    _safe.clear()


@contextlib.contextmanager
def safe_globals(allowed: list) -> Iterator[None]:
    """`add_safe_globals` for a while. torch.serialization.safe_globals."""
    before = dict(_safe)
    add_safe_globals(allowed)
    try:
        yield
    finally:
        clear_safe_globals()
        _safe.update(before)


_DATA = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND"),
    *("APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS"),
    *("FROZENSET", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
    *("BINPERSID", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"),
)
# What pickle raises on bytes that make no sense.
DAMAGE = (
    *(EOFError, IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError),
    *(UnicodeError, AssertionError, MemoryError, RecursionError, pickle.UnpicklingError),
    struct.error,
)


class RestrictedUnpickler(_PlainUnpickler):
    """Builds plain data, tensors, and what was declared safe; LoadError at anything else.

    `storage` answers persistent ids, which is how pickles name storages.
    """

    dispatch = {
        getattr(pickle, name)[0]: _PlainUnpickler.dispatch[getattr(pickle, name)[0]]
        for name in _DATA
    }

    def __init__(self, file: Any, storage: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(file, **options)
        self.persistent_load = storage
        self._known = known_globals()

    def load(self) -> Any:
        try:
            return super().load()
        except LoadError:
            raise
        except DAMAGE as error:
            text = f"{type(error).__name__}: {error}"
            raise LoadError(
                f"the pickle is damaged, or uses what is not allowed ({text})"
            ) from None

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _safe:
            return _safe[full]
        if full in self._known:
            return self._known[full]
        raise LoadError(
            f"refused: the file wants {full}, which torch.load(weights_only=True) does not allow. "
            "If you trust the file, torch.serialization.add_safe_globals allows it, and "
            "weights_only=False runs whatever the file says"
        )

    def _is_callable(self, function: Any) -> bool:
        if isinstance(function, Name) or not callable(function) or function is Tensor:
            return False
        allowed = (*self._known.values(), *_safe.values())
        return any(function is known for known in allowed)

    def _reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        if not self._is_callable(function):
            raise LoadError(f"refused: the file calls {function!r}")
        self.stack[-1] = function(*arguments)

    def _new(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if kind is Parameter:
            new = Parameter(*arguments)
        elif kind in (OrderedDict, Counter) or any(kind is safe for safe in _safe.values()):
            new = kind.__new__(kind, *arguments)
        else:
            raise LoadError(f"refused: the file makes an object of {kind!r}")
        self.append(new)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict:
            target.__dict__.update(state)  # a state_dict's _metadata
        elif any(type(target) is safe for safe in _safe.values()):
            self.append(state)
            _PlainUnpickler.load_build(self)
        else:
            raise LoadError(f"refused: the file sets the state of an object of {type(target)!r}")

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.NEWOBJ[0]] = _new
    dispatch[pickle.BUILD[0]] = _build


def torch_name(module: str) -> str:
    """The module that torch has where we have this one."""
    return "torch" + module.removeprefix("torchmlx") if is_ours(module) else module


def is_ours(module: str) -> bool:
    return module == "torchmlx" or module.startswith("torchmlx.")


class Unpickler(pickle.Unpickler):
    """Python's own, with torch's names found in torchmlx: weights_only=False. Runs any code."""

    def __init__(self, file: Any, storage: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(file, **options)
        self._storage, self._known = storage, known_globals()

    def persistent_load(self, pid: Any) -> Any:
        return self._storage(pid)

    def find_class(self, module: str, name: str) -> Any:
        if (found := self._known.get(f"{module}.{name}")) is not None:
            return found
        if module == "torch" or module.startswith("torch."):
            module = "torchmlx" + module.removeprefix("torch")
            try:
                importlib.import_module(module)
            except ImportError:
                raise LoadError(
                    f"the file names torch{module[8:]}.{name}, which is not here"
                ) from None
        return super().find_class(module, name)


class Pickler(_PlainPickler):
    """Writes our objects under torch's names; `reduce_tensor` says how tensors are stored."""

    dispatch = dict(_PlainPickler.dispatch)

    def __init__(self, file: Any, protocol: int, reduce_tensor: Callable, pid: Callable) -> None:
        super().__init__(file, protocol)
        self._reduce_tensor, self.persistent_id = reduce_tensor, pid

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            return self._reduce_tensor(obj)
        if isinstance(obj, (Name, dtype)):
            return "a global"  # save_global knows them
        if isinstance(obj, Size):
            return Name("torch", "Size"), (tuple(obj),)
        if isinstance(obj, device):
            return _DEVICE, (obj.type,) if obj.index is None else (obj.type, obj.index)
        return NotImplemented

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, dtype):
            self._write_global(obj, "torch", obj.name)
        elif isinstance(obj, Name):
            self._write_global(obj, obj.module, obj.name)
        elif is_ours(module := getattr(obj, "__module__", None) or ""):
            found: Any = sys.modules[module]
            for part in obj.__qualname__.split("."):
                found = getattr(found, part, None)
            if found is not obj:
                raise pickle.PicklingError(f"cannot save {obj!r}: it has no name of its own")
            self._write_global(obj, torch_name(module), obj.__qualname__)
        else:
            super().save_global(obj, name)

    def _write_global(self, obj: Any, module: str, name: str) -> None:
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.memoize(obj)

    dispatch[type(_encode)] = save_global


_DEVICE = Name("torch", "device")
