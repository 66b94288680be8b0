"""Settings, and questions about the machine: kept and answered as torch on a CPU does."""

import logging

import pytest
import torch as real

import torchmlx as ours

CPU_ONLY = not ours.accelerator.is_available()

QUESTIONS = (
    "cuda.is_available()", "cuda.device_count()", "cuda.is_initialized()",
    "cuda.memory_allocated()", "cuda.max_memory_allocated()", "cuda.memory_reserved()",
    "cuda.max_memory_reserved()", "cuda.is_bf16_supported()", "cuda.manual_seed(3)",
    "cuda.manual_seed_all(3)", "cuda.current_device()", "cuda.get_device_name()",
    "cuda.synchronize()", "backends.mps.is_available()", "backends.cudnn.enabled",
    "backends.cudnn.benchmark", "backends.cudnn.deterministic", "backends.cudnn.allow_tf32",
    "backends.cudnn.is_available()", "backends.cudnn.version()", "backends.cuda.is_built()",
    "backends.cuda.matmul.allow_tf32", "backends.cuda.flash_sdp_enabled()",
    "backends.cuda.math_sdp_enabled()", "get_float32_matmul_precision()",
    "are_deterministic_algorithms_enabled()", "is_deterministic_algorithms_warn_only_enabled()",
    "distributed.is_initialized()", "distributed.get_rank()", "distributed.get_world_size()",
    "jit.is_scripting()", "jit.is_tracing()", "compiler.is_compiling()", "version.cuda",
    "version.hip", "typename(torch.zeros(2))", "typename(3)", "typename(torch.zeros(2).long())",
    "typename(torch.nn.Linear(1,1))", "strided",
)  # fmt: skip


def answer(torch, question):
    try:
        name = question if question.startswith("typename") else f"torch.{question}"
        return repr(eval(name, {"torch": torch, "typename": torch.typename}))
    except (AssertionError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.skipif(not CPU_ONLY, reason="platform: compares with torch without a GPU")
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions(question):
    assert answer(ours, question).__repr__().replace("torchmlx", "torch") == repr(
        answer(real, question)
    )


def test_settings_are_kept():
    ours.set_float32_matmul_precision("high")
    assert ours.get_float32_matmul_precision() == "high"
    ours.set_float32_matmul_precision("highest")
    with pytest.raises(RuntimeError, match="precision"):
        ours.set_float32_matmul_precision("low")
    ours.use_deterministic_algorithms(True, warn_only=True)
    assert ours.is_deterministic_algorithms_warn_only_enabled()
    ours.use_deterministic_algorithms(False)
    assert not ours.is_deterministic_algorithms_warn_only_enabled()


def test_compile_gives_back_what_it_was_given(caplog, monkeypatch):
    monkeypatch.setattr("torchmlx.runtime._told", False)

    @ours.compile(dynamic=True)
    def doubled(x):
        return x + x

    module = ours.nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING):
        assert ours.compile(module, mode="reduce-overhead") is module
    assert doubled(ours.ones(2)).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="mode or options"):
        ours.compile(doubled, mode="default", options={})
    with pytest.raises(RuntimeError, match="wants a function"):
        ours.compile(3)


def test_what_is_not_there_says_so():
    assert not ours.distributed.is_available()
    with pytest.warns(UserWarning, match="records nothing"), ours.profiler.profile() as profile:
        profile.step()
    with pytest.raises(NotImplementedError, match="key_averages"):
        profile.key_averages()
