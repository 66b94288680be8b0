"""Wan2.2's decoder in bfloat16: peaks of memory by frames, tiles and --memory-limit, 704 wide.

The least of rows is decoded that shows it; half an hour on two cores. `sizes` and `limits` may be
measured alone: python -m bench.vae_memory sizes.
"""

import sys
import time

import mlx.core as mx

import torchmlx
from torchmlx.errors import InputError
from torchmlx.models.autoencoder_kl_wan import Config, frames_of
from torchmlx.models.video_memory import Job, choose, predict

from .vae_model import WAN22, in_gib, latents, peaks, resident, wan22

WIDTH = 704
# Latent frames and height, tiles of 256/192: frames and tiles vary one at a time.
SIZES = ((2, 320), (2, 448), (4, 320), (4, 448))
LIMITS = (2, 4, 8)  # GiB
CONFIG = Config.from_dict(WAN22)


def main(parts: tuple[str, ...] = ("sizes", "limits")) -> None:
    """Decode random latents and print each process peak beside what was predicted."""
    model = wan22(mx.bfloat16)
    print(f"weights {mx.get_active_memory() / 2**30:.2f} GiB, {in_gib(resident())}", flush=True)
    if "sizes" in parts:
        for frames, height in SIZES:
            model.enable_tiling(256, 256, 192, 192)
            expected = predict(job(frames, height, WIDTH), torchmlx.bfloat16, 256, 192)
            decode(model, frames, height, 1 << 62, f"predicted {expected / 2**30:.2f}")
    if "limits" in parts:
        for limit in LIMITS:
            keep(model, limit)
        for limit in LIMITS:
            print(f"704 x 1280, 33 frames, {limit} GiB: {plan(9, 704, 1280, limit)}")


def job(frames: int, height: int, width: int) -> Job:
    """A decode of so many latent frames, of pixels."""
    return Job(CONFIG, False, frames_of(frames - 1).stop, height, width)


def keep(model, limit: int) -> None:
    """Decode 704 x 448 within `limit` GiB, or print why not."""
    try:
        found = choose(job(2, 448, WIDTH), limit << 30, [torchmlx.bfloat16])
    except InputError as error:
        print(f"{limit} GiB: refused: {error}", flush=True)
        return
    model.disable_tiling()
    if found.tile is not None:
        model.enable_tiling(*(found.tile,) * 2, *(found.stride,) * 2)
    note = f"limit {limit} GiB, tile {found.tile}, predicted {found.peak / 2**30:.2f}"
    worst = decode(model, 2, 448, found.memory, note)
    print(f"limit {limit} GiB {'kept' if worst <= limit << 30 else 'NOT KEPT'}", flush=True)


def plan(frames: int, height: int, width: int, limit: int) -> str:
    """What would be done, or why nothing."""
    try:
        found = choose(job(frames, height, width), limit << 30, [torchmlx.bfloat16])
    except InputError as error:
        return f"refused: {error}"
    return f"tile {found.tile}, predicted peak {found.peak / 2**30:.2f} GiB"


def decode(model, frames: int, height: int, memory: int, note: str) -> int:
    """Print a decode's peaks; the worst of them in bytes."""
    start, largest = time.perf_counter(), 0

    def progress(done: int, total: int) -> None:
        nonlocal largest
        if mx.get_peak_memory() > largest:
            largest = mx.get_peak_memory()
            print(f"  {done}/{total}: MLX {largest / 2**30:.2f} GiB", flush=True)

    with peaks() as found:
        z = latents(frames, height, WIDTH)
        video = model.decode_frames(z, torchmlx.uint8, memory, progress)
        seen = sum(part.shape[2] for part in video)
    seconds = time.perf_counter() - start
    print(
        f"{frames} latents ({seen} frames) {WIDTH} x {height}, {note}: {in_gib(found)}; "
        f"{seconds:.0f} s",
        flush=True,
    )
    return max(found.values())


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or ("sizes", "limits"))
