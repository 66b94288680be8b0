"""Which backend serves a call: defaults, overrides from code and environment, the trace."""

import threading
import warnings

import mlx.core as mx
import pytest

from tests.bounded import join
from torchmlx.kernels import dispatch, native, registry
from torchmlx.kernels.dispatch import OverrideError, trace, use
from torchmlx.kernels.gemv import linear
from torchmlx.kernels.matmul import matmul
from torchmlx.kernels.recording import record
from torchmlx.kernels.softmax import softmax

X = mx.array([[1.0, 2.0, 3.0]])
WIDE = mx.ones((1, 32))
off_mac = pytest.mark.skipif(mx.metal.is_available(), reason="for machines without Metal")


@pytest.fixture
def environment(monkeypatch):
    """Set a variable and have it read again; undone afterwards."""

    def put(name, value):
        monkeypatch.setenv(name, value)
        dispatch.environment.cache_clear()

    yield put
    monkeypatch.undo()
    dispatch.environment.cache_clear()


@pytest.fixture
def extension(monkeypatch):
    """Pretend that the C++ extension cannot be used, for a reason, or leave it as it is."""

    def pretend(reason):
        if reason:
            monkeypatch.setattr(native, "obstacle", lambda: reason)
        dispatch._preferred.cache_clear()
        native.warn_once.cache_clear()

    yield pretend
    monkeypatch.undo()
    dispatch._preferred.cache_clear()


def served(function=lambda: softmax(X)):
    with trace() as calls:
        function()
    return [(call.kernel, call.backend, call.variant) for call in calls]


@off_mac
@pytest.mark.parametrize("reason, backend", [("", "cpu"), ("no compiler", "fallback")])
def test_default_without_a_gpu(extension, reason, backend):
    extension(reason)
    with warnings.catch_warnings(record=True):
        assert served() == [("softmax", backend, "")]
    why = "not metal: this machine has no Metal GPU"
    without = f"; not cpu: {reason}; not cuda: this machine has no CUDA GPU"
    assert registry.backend("softmax") == {
        "kernel": "softmax",
        "backend": backend,
        "variant": "",
        "why": why + (without if reason else ""),
    }


def test_one_warning_says_what_is_slow_without_the_extension(extension):
    extension("no C++ extension is built")
    with pytest.warns(UserWarning, match="slow on this CPU: no C.* To mend it, install g"):
        served()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served()
        served(lambda: linear(X, X))


def test_an_override_to_the_missing_extension(extension):
    extension("no C++ extension is built")
    with use("cpu"), pytest.raises(OverrideError, match="cannot serve softmax: no C.. extension"):
        softmax(X)


def test_trace_keeps_order_and_ends():
    with trace() as calls:
        linear(X, X)
        softmax(X)
    softmax(X)
    assert [call.kernel for call in calls] == ["gemv", "softmax"]


def test_trace_sees_a_compiled_function_once():
    compiled = mx.compile(lambda x: softmax(x))
    with trace() as calls:
        compiled(X)
        compiled(X)
    assert len(calls) == 1


def recorded(function=softmax, *arrays):
    with trace() as calls:
        record(function, *(arrays or (X,)))
    return [(call.kernel, call.backend, call.variant) for call in calls]


def test_use_picks_backend_and_variant():
    with use("metal"):
        assert recorded() == [("softmax", "metal", "row")]
    with use(softmax="metal:split"):
        assert recorded() == [("softmax", "metal", "split")]
    with use("metal"), use("fallback"):
        assert served() == [("softmax", "fallback", "")]


def test_a_kernel_beats_all_and_the_inner_beats_the_outer():
    with use("metal", softmax="fallback"):
        assert recorded() == [("softmax", "fallback", "")]
        assert recorded(linear, WIDE, WIDE) == [("gemv", "metal", "1x16")]
        with use(softmax="metal:looped"):
            assert recorded() == [("softmax", "metal", "looped")]
        assert recorded() == [("softmax", "fallback", "")]


def test_a_backend_for_all_leaves_what_it_lacks_to_the_fallback():
    """There is no Metal program for matmul: TORCHMLX_BACKEND=metal must not break a Mac."""
    with use("metal"), trace() as calls:
        matmul(X, X.T)
    assert [(call.backend, call.why) for call in calls] == [
        ("fallback", "use: it has no Metal program")
    ]
    with use(matmul="metal"), pytest.raises(OverrideError, match="it has no Metal program"):
        matmul(X, X.T)


def test_the_policy_still_leaves_problems_to_the_fallback():
    with use("metal"), trace() as calls:
        linear(mx.ones((9, 3)), X)
    assert [(call.backend, call.why) for call in calls] == [
        ("fallback", "the Metal policy leaves this problem to MLX")
    ]


def test_environment(environment):
    environment("TORCHMLX_BACKEND", "metal")
    assert recorded() == [("softmax", "metal", "row")]
    environment("TORCHMLX_KERNEL_SOFTMAX", "fallback")
    assert served() == [("softmax", "fallback", "")]
    assert registry.backend("softmax")["why"] == "TORCHMLX_KERNEL_SOFTMAX"
    assert registry.backend("gemv")["backend"] == "metal"
    with use(softmax="metal:looped"):
        assert recorded() == [("softmax", "metal", "looped")]
    environment("TORCHMLX_BACKEND", "")
    assert "TORCHMLX" not in registry.backend("gemv")["why"]


@pytest.mark.parametrize(
    "variable, value, message",
    [
        ("TORCHMLX_BACKEND", "metall", "TORCHMLX_BACKEND: unknown backend 'metall'; one of metal,"),
        ("TORCHMLX_BACKEND", "fallback:row", "fallback has no variants"),
        ("TORCHMLX_KERNEL_SOFTMACHS", "cpu", "no kernel 'softmachs'; there are: .*softmax"),
        ("TORCHMLX_KERNEL_SOFTMAX", "metal:rows", "its variants are row, looped, split, strided"),
    ],
)
def test_environment_errors(environment, variable, value, message):
    environment(variable, value)
    with pytest.raises(OverrideError, match=message):
        softmax(X)


def test_use_errors():
    with pytest.raises(OverrideError, match="use: unknown backend 'gpu'"), use("gpu"):
        pass
    with pytest.raises(OverrideError, match="use: no kernel 'sotfmax'"), use(sotfmax="cpu"):
        pass
    with use(gemv="metal:4x4"), pytest.raises(OverrideError, match="1 to 8 rows"):
        linear(mx.ones((9, 3)), X)


@off_mac
def test_backends_of_absent_hardware():
    with use("cuda"), pytest.raises(OverrideError, match="this machine has no CUDA GPU"):
        softmax(X)
    with use("metal"), pytest.raises(OverrideError, match="No Metal back-end"):
        softmax(X)


def test_a_failure_that_nobody_asked_for_stays_itself(monkeypatch):
    """Only an override's failure is the user's to mend."""
    choice = dispatch.Choice("metal", "row", "pretended")
    monkeypatch.setattr(dispatch, "select", lambda kernel: choice)
    with pytest.raises(ValueError, match="row softmax holds") as caught:
        softmax(mx.zeros((2, 1025)))
    assert not isinstance(caught.value, OverrideError)


def test_overrides_and_traces_stay_in_their_thread():
    seen = []
    with use("metal"), trace() as calls:
        thread = threading.Thread(target=lambda: seen.extend(served()))
        thread.start()
        join(thread)
    assert calls == []
    assert [kernel for kernel, _, _ in seen] == ["softmax"]
