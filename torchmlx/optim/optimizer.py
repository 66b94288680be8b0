"""The base of all optimisers: parameter groups, state, checkpoints. torch.optim.Optimizer.

An optimiser gives a rule on arrays; the base reads gradients, keeps the state as Tensors under
torch's names, writes the results in place and starts their evaluation: otherwise a loop that never
looks at its loss would grow one lazy graph for ever.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import mlx.core as mx

from ..core import modes
from ..core.tape import Removable
from ..core.tensor import Tensor, from_array

required: Any = object()


def check(what: str, value, holds: bool) -> None:
    """torch's ValueError for a setting out of range."""
    if not holds:
        raise ValueError(f"Invalid {what}: {value}")


def check_lr(lr) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    check("learning rate", lr, lr >= 0.0)


def check_betas(betas) -> None:
    for i, beta in enumerate(betas):
        check(f"beta parameter at index {i}", beta, 0.0 <= beta < 1.0)


def wide(x: mx.array) -> mx.array:
    """Half precision as float32, complex numbers as pairs: what a rule computes on."""
    if x.dtype == mx.complex64:
        return mx.stack([mx.real(x), mx.imag(x)], axis=-1)
    return x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x


def narrow(x: mx.array, like: mx.array) -> mx.array:
    """The inverse of `wide`, for an array that belongs to `like`."""
    if like.dtype == mx.complex64 and x.shape != like.shape:
        return mx.reshape(mx.view(x, mx.complex64), like.shape)
    return x.astype(like.dtype)


class Optimizer:
    """Changes parameters by their gradients; base of the rules. torch.optim.Optimizer."""

    counts = True  # whether the state holds the number of steps

    def __init__(self, params, defaults: dict[str, Any]):
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                f"dicts, but got {params.type()}"
            )
        if defaults.get("differentiable"):
            raise NotImplementedError("optimizers with differentiable=True are not implemented")
        self.defaults = defaults
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        self._pre_hooks: OrderedDict = OrderedDict()
        self._post_hooks: OrderedDict = OrderedDict()
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    # ---- the rule, given by each optimiser

    def start(self, p: mx.array, group: dict[str, Any]) -> Mapping[str, mx.array | None]:
        """A parameter's state before the first step, by torch's names."""
        return {}

    def rule(self, p, g, state: dict[str, Any], group: dict[str, Any], step: int) -> mx.array:
        """The parameter after a step; `state` is changed in place."""
        raise NotImplementedError

    # ---- steps

    def step(self, closure: Callable[[], Any] | None = None):
        """One step; `closure` computes the loss anew and returns it."""
        for hook in tuple(self._pre_hooks.values()):
            hook(self, (closure,), {})
        loss = None
        if closure is not None:
            with modes.enable_grad():
                loss = closure()
        with modes.no_grad():
            changed: list[mx.array] = []
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        changed += self._step_of(p, group)
        mx.async_eval(changed)
        for hook in tuple(self._post_hooks.values()):
            hook(self, (closure,), {})
        return loss

    def _step_of(self, p: Tensor, group: dict[str, Any]) -> list[mx.array]:
        """One parameter's step; returns the arrays to evaluate."""
        value = p._read()
        state = self.state[p]
        if not state:
            if self.counts:
                state["step"] = from_array(mx.array(0.0))
            for name, array in self.start(value, group).items():
                state[name] = None if array is None else from_array(array, p.device)
        count = 0
        if self.counts:
            count = int(state["step"].item()) + 1
            state["step"]._write(mx.array(float(count)))
        arrays = {
            k: wide(v._read()) if isinstance(v, Tensor) else v
            for k, v in state.items()
            if k != "step"
        }
        assert p.grad is not None
        gradient = wide(p.grad._read())
        gradient = -gradient if group.get("maximize") else gradient
        result = narrow(self.rule(wide(value), gradient, arrays, group, count), value)
        p._write(result)
        return [result, *self._keep(p, state, arrays, value)]

    def _keep(self, p: Tensor, state, arrays, like: mx.array) -> list[mx.array]:
        kept = []
        for name, array in arrays.items():
            if not isinstance(array, mx.array):
                state[name] = array
                continue
            old = state.get(name)
            array = narrow(array, like if old is None else old._read())
            kept.append(array)
            if old is None:
                state[name] = from_array(array, p.device)
            else:
                old._write(array)
        return kept

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or set_to_none:
                    p.grad = None
                else:
                    p.grad = p.grad.detach()
                    p.grad.zero_()

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; what is not given is the default."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        group["params"] = _listed(group)
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError("optimizer can only optimize Tensors, but one of the params is "
                                + type(p).__name__)  # fmt: skip
            if not (p.is_leaf or p.retains_grad):
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            if default is required and name not in group:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter "
                    f"{name}"
                )
            group.setdefault(name, default)
        known = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in known for p in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(group)

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Settings and state, parameters named by their number."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = [numbers[id(p)] for p in group["params"]]
            groups.append(packed)
        state = {
            numbers[id(p)] if isinstance(p, Tensor) else p: dict(v) if isinstance(v, dict) else v
            for p, v in self.state.items()
        }
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take settings and state from a state_dict; tensors are copied."""
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        sizes = [len(g["params"]) for g in saved]
        if sizes != [len(g["params"]) for g in self.param_groups]:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group"
            )
        numbers = chain.from_iterable(g["params"] for g in saved)
        own = chain.from_iterable(g["params"] for g in self.param_groups)
        by_number = dict(zip(numbers, own, strict=True))
        self.state = defaultdict(dict)
        for k, v in state_dict["state"].items():
            if k in by_number:
                self.state[by_number[k]] = _cast(by_number[k], v)
            else:
                self.state[k] = copy.deepcopy(v)
        for group, new in zip(self.param_groups, saved, strict=True):
            group.update(copy.deepcopy({k: v for k, v in new.items() if k != "params"}))

    def register_step_pre_hook(self, hook) -> Removable:
        """Call hook(optimizer, args, kwargs) before each step."""
        return Removable(self._pre_hooks, hook)

    def register_step_post_hook(self, hook) -> Removable:
        """Call hook(optimizer, args, kwargs) after each step."""
        return Removable(self._post_hooks, hook)

    def __repr__(self):
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]
        return "\n".join(lines) + "\n)"


def _listed(group: dict[str, Any]) -> list:
    """The group's parameters; pairs of name and parameter leave their names in the group."""
    params = group["params"]
    if isinstance(params, Tensor):
        return [params]
    if isinstance(params, set):
        raise TypeError(
            "optimizer parameters need to be organized in ordered collections, but the ordering "
            "of tensors in sets will change between runs. Please use a list instead."
        )
    params = list(params)
    if params and isinstance(params[0], tuple):
        group["param_names"] = [name for name, _ in params]
        params = [p for _, p in params]
    return params


def _cast(p: Tensor, value, name: str = "") -> Any:
    """A saved value as p's state: floating point tensors get its dtype, but for the step count."""
    if isinstance(value, Tensor):
        if name == "step":
            return value.detach().clone()
        kind = p.dtype if p.dtype.is_floating_point else value.dtype
        return value.detach().to(device=p.device, dtype=kind, copy=True)
    if isinstance(value, dict):
        return {k: _cast(p, v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(p, v) for v in value)
    return value


def number(value) -> float:
    """A setting that may be a tensor of one element."""
    return value.item() if isinstance(value, Tensor) else value


ParamsT = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
