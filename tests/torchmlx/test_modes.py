"""no_grad and its like: as context, as decorator, around generators, per thread."""

from __future__ import annotations

import threading

import pytest

from tests.bounded import join


def test_contexts_nest(torch):
    with torch.no_grad():
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_an_exception_restores_the_mode(torch):
    with pytest.raises(ValueError), torch.no_grad():
        raise ValueError
    assert torch.is_grad_enabled()


def test_decorators_with_and_without_parentheses(torch):
    assert torch.no_grad()(torch.is_grad_enabled)() is False
    assert torch.no_grad(torch.is_grad_enabled)() is False
    assert torch.inference_mode()(torch.is_inference_mode_enabled)() is True
    assert torch.inference_mode(False)(torch.is_inference_mode_enabled)() is False
    assert torch.set_grad_enabled(False)(torch.is_grad_enabled)() is False
    assert torch.is_grad_enabled()


def test_decorated_functions_recurse(torch):
    @torch.no_grad()
    def depth(n):
        return [torch.is_grad_enabled()] + (depth(n - 1) if n else [])

    assert depth(2) == [False] * 3
    assert torch.is_grad_enabled()


def test_generators_hold_the_mode_only_while_they_run(torch):
    @torch.no_grad()
    def generate():
        yield torch.is_grad_enabled()
        yield torch.is_grad_enabled()

    seen = [(inside, torch.is_grad_enabled()) for inside in generate()]
    assert seen == [(False, True), (False, True)]


def test_set_grad_enabled_acts_at_once(torch):
    try:
        torch.set_grad_enabled(False)
        assert not torch.is_grad_enabled()
        with torch.set_grad_enabled(True):
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_inference_mode_disables_gradients(torch):
    with torch.inference_mode():
        assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled()
        assert torch.ones(2).add_(1).tolist() == [2, 2]
    assert not torch.is_inference_mode_enabled()


def test_modes_belong_to_a_thread(torch):
    seen = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
        thread.start()
        join(thread)
    assert seen == [True]


def test_a_leaf_that_requires_grad_is_not_written(torch):
    x = torch.ones(2, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x.zero_(), lambda: x.__setitem__(0, 1)):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            write()
    with torch.no_grad():
        x.add_(1)
    x.data.add_(1)
    assert x.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, dtype=torch.int64).requires_grad_()
