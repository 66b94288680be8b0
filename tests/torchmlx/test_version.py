"""Small modules of names: version, functional, types."""

import operator

import pytest
import torch

import torchmlx

BY = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq)


@pytest.mark.parametrize("text", ["2.15.0+mlx", "2.4.1", "2.15.0a0+git1234", "no version"])
@pytest.mark.parametrize("other", ["2.4", (2, 4), (2, 20), "2.15.0", "2.15.0+mlx", [3], "text"])
def test_versions_compare_as_torchs(text, other):
    def compared(by):
        try:
            return by(version, other)
        except TypeError:
            return TypeError

    answers = []
    for kind in (torchmlx.torch_version.TorchVersion, torch.torch_version.TorchVersion):
        version = kind(text)
        answers.append([compared(by) for by in BY] + [hash(version) == hash(text)])
    assert answers[0] == answers[1]


def test_own_version_is_new_enough():
    assert (2, 13) <= torchmlx.__version__ < (3,) and isinstance(torchmlx.__version__, str)
    assert torchmlx.__version__ >= "2.9" and torchmlx.version.__version__ == torchmlx.__version__


def test_functional_has_the_functions_of_torch():
    assert set(torch.functional.__all__) == set(dir(torchmlx.functional))
    for name in torch.functional.__all__:
        assert getattr(torchmlx.functional, name) is getattr(torchmlx, name)
    with pytest.raises(AttributeError, match="no_such"):
        torchmlx.functional.no_such  # noqa: B018


def test_types_hold_what_annotations_name():
    from torchmlx.types import Device, FileLike, Number, _size

    assert isinstance(1.5, Number) and isinstance(True, Number) and not isinstance("1", Number)
    assert isinstance("mps", Device) and isinstance(torchmlx.device("cpu"), Device)
    assert FileLike is not None and _size is not None
