"""transformers as the oracle of logits: weights that hide nothing, and how close is close."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is the oracle")
# Tiny models gain nothing by threads, and idle ones take the cores from other tests.
torch.set_num_threads(1)

IDS = np.random.default_rng(1).integers(3, 320, (2, 70))


def randomise(model, size: float = 0.12) -> None:
    """Norms and biases too: their defaults (ones, zeros) would hide a missing or misplaced one.

    Norms of small values amplify rounding, torch's own too, in the gated delta layers: with larger
    weights its float32 logits are 3e-5 away from its float64 ones.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("A_log"):
                p.copy_((0.01 + 16 * torch.rand(p.shape, generator=generator)).log())
            elif p.ndim == 1:
                zero_centred = "norm" in name and not p.any()
                p.copy_((0 if zero_centred else 1) + 0.3 * noise)
            else:
                p.copy_(size * noise)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 3e-5 * np.abs(theirs).max()


def reference(model, ids, **kwargs) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids), **kwargs).logits.numpy()
