"""torch.jit, where nothing is compiled: decorators give back what they were given.

There is no TorchScript: torch.jit.save, load and trace are absent.
"""

from __future__ import annotations

import builtins
from typing import Any
from typing import Final as Final

from . import annotations as annotations


def is_scripting() -> bool:
    """False: there is no TorchScript."""
    return False


is_tracing = is_scripting


def script(obj: Any, *_: Any, **__: Any) -> Any:
    """`obj` itself, to run as Python."""
    return obj


def ignore(fn: Any = None, drop: bool = False, **_: Any) -> Any:
    """`fn` itself; without it a decorator."""
    return fn if callable(fn) else (lambda function: function)


def unused(fn: Any) -> Any:
    """`fn` itself."""
    return fn


export = script_method = script_if_tracing = unused
_script_if_tracing = _overload = _overload_method = unused


def annotate(the_type: Any, the_value: Any) -> Any:
    """`the_value` itself."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Python's isinstance."""
    return builtins.isinstance(obj, target_type)
