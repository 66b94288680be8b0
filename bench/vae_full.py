"""Wan2.2's decoder at 704x1280 in bfloat16, tiles of 256/192, 2 latent frames: time and memory.

About 150 TFLOP: half an hour on two cores.
"""

import time

import mlx.core as mx

import torchmlx

from .vae_model import in_gib, latents, peaks, wan22

LIMIT = 4 << 30


def main() -> None:
    """Decode, printing a line a tile and frame, then the peaks: of building, then of decoding."""
    with peaks() as building:
        model = wan22(mx.bfloat16)
    weights = mx.get_active_memory() / 2**30
    print(f"weights {weights:.2f} GiB; peaks of building: {in_gib(building)}", flush=True)
    model.enable_tiling(256, 256, 192, 192)
    start = time.perf_counter()

    def progress(done: int, total: int) -> None:
        seconds = time.perf_counter() - start
        peak = mx.get_peak_memory() / 2**30
        print(f"{done}/{total}, {seconds:.0f} s, {peak:.2f} GiB", flush=True)

    with peaks() as found:
        parts = list(model.decode_frames(latents(2, 704, 1280), torchmlx.uint8, progress=progress))
    seconds = time.perf_counter() - start
    print(f"{sum(part.shape[2] for part in parts)} frames of {tuple(parts[0].shape[3:])}")
    spread = mx.array([part.mx.astype(mx.float32).var().item() for part in parts])
    print(f"variances of the parts: {spread.tolist()}")
    print(f"{seconds:.0f} s; peaks of decoding: {in_gib(found)}")
    worst = max(found.values())
    print(f"at most {LIMIT / 2**30:.0f} GiB: {'holds' if worst <= LIMIT else 'DOES NOT HOLD'}")


if __name__ == "__main__":
    main()
