"""Recurrent layers and cells, on tensors and on packed sequences."""

from __future__ import annotations

import math
import warnings

from ...aten import rnn
from ...core.op import TABLE
from .. import functional as F
from .. import init
from ..utils.rnn import PackedSequence
from .linear import empty
from .module import Module

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def _uniform(module: Module, hidden_size: int) -> None:
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0
    for weight in module.parameters():
        init.uniform_(weight, -bound, bound)


class RNNBase(Module):
    """What RNN, LSTM and GRU share. torch.nn.RNNBase."""

    __constants__ = [
        "mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout",
        "bidirectional", "proj_size",
    ]  # fmt: skip

    def __init__(
        self, mode, input_size, hidden_size, num_layers=1, bias=True, batch_first=False,
        dropout=0.0, bidirectional=False, proj_size=0, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        if mode not in _GATES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode, self.input_size, self.hidden_size = mode, input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional, self.proj_size = float(dropout), bidirectional, proj_size
        self._check_settings(dropout)
        gates, outputs = _GATES[mode] * hidden_size, proj_size or hidden_size
        self._all_weights = []
        for layer in range(num_layers):
            inputs = outputs * (2 if bidirectional else 1) if layer else input_size
            for suffix in ("", "_reverse")[: 2 if bidirectional else 1]:
                shapes = {"weight_ih": (gates, inputs), "weight_hh": (gates, outputs)}
                if bias:
                    shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
                if proj_size:
                    shapes |= {"weight_hr": (proj_size, hidden_size)}
                names = [f"{name}_l{layer}{suffix}" for name in shapes]
                for name, shape in zip(names, shapes.values(), strict=True):
                    setattr(self, name, empty(*shape, device=device, dtype=dtype))
                self._all_weights.append(names)
        self.reset_parameters()

    def _check_settings(self, dropout) -> None:
        number = isinstance(dropout, (int, float)) and not isinstance(dropout, bool)
        if not number or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an "
                "element being zeroed"
            )
        if dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero "
                "dropout "
                f"expects num_layers greater than 1, but got dropout={dropout} and "
                f"num_layers={self.num_layers}",
                stacklevel=4,
            )
        for name in ("input_size", "hidden_size", "num_layers"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if self.proj_size < 0:
            raise ValueError(
                "proj_size should be a positive integer or zero to disable projections"
            )
        if self.proj_size >= self.hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")

    @property
    def all_weights(self):
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Nothing to do: a memory layout for cuDNN."""

    def reset_parameters(self) -> None:
        """Uniform in ±1/sqrt(hidden_size)."""
        _uniform(self, self.hidden_size)

    def _check_input(self, input) -> None:
        if input.ndim not in (2, 3):
            name = "RNN" if self.mode.startswith("RNN") else self.mode
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.ndim}D instead")
        weight = self.weight_ih_l0
        if input.dtype is not weight.dtype:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({weight.dtype}). "
                f"Convert input: input.to({weight.dtype}), or convert model: "
                f"model.to({input.dtype})"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )

    def _state(self, given, input, batch: int, size: int, label: str):
        """The initial state [layers * directions, batch, size]: zeros, or what was given."""
        layers = self.num_layers * (2 if self.bidirectional else 1)
        if given is None:
            return input.new_zeros((layers, batch, size))
        if tuple(given.shape) != (layers, batch, size):
            raise RuntimeError(
                f"Expected {label} size {(layers, batch, size)}, got {list(given.shape)}"
            )
        return given

    def _run(self, input, h, c, sizes=None):
        """input [T, B, I], or packed [S, I], through every layer: (output, last h, last c)."""
        directions = 2 if self.bidirectional else 1
        last_h, last_c = [], []
        for layer in range(self.num_layers):
            outputs = []
            for d in range(directions):
                i = layer * directions + d
                weights = dict.fromkeys(
                    ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
                )
                for name in self._all_weights[i]:
                    weights[name.rpartition("_l")[0]] = getattr(self, name)
                own_c = None if c is None else c[i]
                out, hn, cn = rnn.layer(
                    self.mode, input, h[i], own_c, *weights.values(), d == 1, sizes
                )
                outputs.append(out)
                last_h.append(hn)
                last_c.append(cn)
            input = outputs[0] if directions == 1 else TABLE["cat"].call(outputs, -1)
            if self.dropout and self.training and layer < self.num_layers - 1:
                input = F.dropout(input, self.dropout, True)
        stack = TABLE["stack"].call
        return input, stack(last_h), stack(last_c)

    def forward(self, input, hx=None):
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_input(input)
        batched = input.ndim == 3
        x = input if batched else input.unsqueeze(0 if self.batch_first else 1)
        x = x.transpose(0, 1) if self.batch_first else x
        output, h, c = self._from_state(x, hx, batched)
        output = output.transpose(0, 1) if self.batch_first else output
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            h, c = h.squeeze(1), c.squeeze(1)
        return output, (h, c) if self.mode == "LSTM" else h

    def _forward_packed(self, packed: PackedSequence, hx):
        data, batch_sizes, order, back = packed
        self._check_input(data)
        lstm, sizes = self.mode == "LSTM", tuple(batch_sizes.tolist())
        if hx is not None and order is not None:
            hx = tuple(s.index_select(1, order) for s in hx) if lstm else hx.index_select(1, order)
        output, h, c = self._from_state(data, hx, True, sizes)
        if back is not None:
            h, c = h.index_select(1, back), c.index_select(1, back)
        return PackedSequence(output, batch_sizes, order, back), (h, c) if lstm else h

    def _from_state(self, x, hx, batched: bool, sizes=None):
        batch = x.shape[1] if sizes is None else sizes[0]
        if self.mode == "LSTM":
            h, c = (None, None) if hx is None else hx
            h, c = (s if s is None else self._batched(s, batched) for s in (h, c))
            h = self._state(h, x, batch, self.proj_size or self.hidden_size, "hidden[0]")
            c = self._state(c, x, batch, self.hidden_size, "hidden[1]")
            return self._run(x, h, c, sizes)
        h = None if hx is None else self._batched(hx, batched)
        return self._run(x, self._state(h, x, batch, self.hidden_size, "hidden"), None, sizes)

    def _batched(self, state, batched: bool):
        if state.ndim != (3 if batched else 2):
            kind = ("batched 3-D", 3) if batched else ("unbatched 2-D", 2)
            raise RuntimeError(
                f"For {kind[0]} input, hx should also be {kind[1]}-D but got {state.ndim}-D tensor"
            )
        return state if batched else state.unsqueeze(1)

    def extra_repr(self):
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        for name, usual in (
            ("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0),
            ("bidirectional", False),
        ):  # fmt: skip
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(RNNBase):
    """h' = tanh or relu of W_ih x + b_ih + W_hh h + b_hh, over a sequence. torch.nn.RNN."""

    def __init__(
        self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True,
        batch_first=False, dropout=0.0, bidirectional=False, device=None, dtype=None,
    ):  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, 0, device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory over a sequence (Hochreiter and Schmidhuber 1997). torch.nn.LSTM."""

    def __init__(self, *args, **kwargs):
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent units over a sequence (Cho et al. 2014). torch.nn.GRU."""

    def __init__(self, *args, **kwargs):
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__("GRU", *args, **kwargs)


class RNNCellBase(Module):
    """What the cells share. torch.nn.RNNCellBase."""

    __constants__ = ["input_size", "hidden_size", "bias"]

    def __init__(self, input_size, hidden_size, bias, num_chunks, device=None, dtype=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates, place = num_chunks * hidden_size, {"device": device, "dtype": dtype}
        self.weight_ih = empty(gates, input_size, **place)
        self.weight_hh = empty(gates, hidden_size, **place)
        self.register_parameter("bias_ih", empty(gates, **place) if bias else None)
        self.register_parameter("bias_hh", empty(gates, **place) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in ±1/sqrt(hidden_size)."""
        _uniform(self, self.hidden_size)

    def _call_cell(self, mode: str, input, h, c):
        """(h, c) after one step of [B, I] or [I]."""
        name = type(self).__name__
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        x = input if input.ndim == 2 else input.unsqueeze(0)
        states = []
        for state in (h, c):
            if state is None:
                state = x.new_zeros((x.shape[0], self.hidden_size))
            elif state.ndim not in (1, 2):
                raise ValueError(
                    f"{name}: Expected hidden to be 1D or 2D, got {state.ndim}D instead"
                )
            states.append(state if state.ndim == 2 else state.unsqueeze(0))
        h, c = states
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        new = rnn.cell(mode, x, h, c if mode == "LSTM" else None, *weights)
        return new if input.ndim == 2 else tuple(s.squeeze(0) for s in new)

    def extra_repr(self):
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text


class RNNCell(RNNCellBase):
    """One step of an RNN. torch.nn.RNNCell."""

    __constants__ = ["input_size", "hidden_size", "bias", "nonlinearity"]

    def __init__(
        self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None
    ):
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._call_cell(f"RNN_{self.nonlinearity.upper()}", input, hx, None)[0]


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (h, c). torch.nn.LSTMCell."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input, hx=None):
        h, c = (None, None) if hx is None else hx
        return self._call_cell("LSTM", input, h, c)


class GRUCell(RNNCellBase):
    """One step of a GRU. torch.nn.GRUCell."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input, hx=None):
        return self._call_cell("GRU", input, hx, None)[0]
