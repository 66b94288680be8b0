"""Clips and pictures in files: mp4 by PyAV; gif, webp and png by Pillow; folders of frames.

A file appears complete or not at all. Frames are uint8 arrays [H, W, 3 or 4].
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError

VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".avi")
ANIMATIONS = (".gif", ".webp")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
CODEC, FPS = "h264", 16.0  # Wan2.1's and 2.2's rate for 14B models; TI2V-5B's is 24


class Clip(NamedTuple):
    """What a file shows: frames [T, H, W, 3] in uint8, and how many a second (None: a picture)."""

    frames: np.ndarray
    fps: float | None


def read_clip(path: str | Path, most: int | None = None, memory: int | None = None) -> Clip:
    """The clip or picture of a file, or of a folder of frames in the order of their names.

    `most` is the number of frames to stop after. Raises InputError for what is not there, cannot be
    read, or takes more than `memory` bytes.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    suffix = path.suffix.lower()
    if path.is_dir():
        names = sorted(p for p in path.iterdir() if p.suffix.lower() in (*PICTURES, ".webp"))
        if not names:
            raise InputError(f"{path}: no frames (files in {', '.join(PICTURES)}) in the folder")
        frames, fps = (frame for name in names for frame in _pictures(name)), FPS
    elif suffix in (*ANIMATIONS, *PICTURES):
        frames, fps = _pictures(path), None if suffix in PICTURES else _animation_rate(path)
    else:
        frames, fps = _video(path), _video_rate(path)
    return Clip(_collected(path, islice(frames, most), memory), fps)


def _collected(path: Path, frames: Iterator[np.ndarray], memory: int | None) -> np.ndarray:
    """Frames as one array, which grows in place: how many there are, only the end tells."""
    first = next(frames, None)
    if first is None:
        raise InputError(f"{path}: no frames in it")
    array, count = np.empty((16, *first.shape), np.uint8), 0
    for frame in chain([first], frames):
        if frame.shape != first.shape:
            raise InputError(
                f"{path}: frame {count} is {frame.shape[1]} x {frame.shape[0]}, those before are "
                f"{first.shape[1]} x {first.shape[0]}; make them one size"
            )
        if memory is not None and (count + 1) * frame.nbytes > memory:
            raise InputError(
                f"{path}: more than {count} frames of {frame.shape[1]} x {frame.shape[0]} do not "
                f"fit in {memory / 2**30:.2f} GiB; take fewer by --frames"
            )
        if count == len(array):
            array.resize((count + count // 4, *frame.shape), refcheck=False)
        array[count] = frame
        count += 1
    array.resize((count, *first.shape), refcheck=False)
    return array


def _video(path: Path) -> Iterator[np.ndarray]:
    with _opened_video(path) as container:
        for frame in container.decode(video=0):
            # Phones film sideways, and say so.
            yield np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90 % 4)


def _video_rate(path: Path) -> float:
    with _opened_video(path) as container:
        return float(container.streams.video[0].average_rate or FPS)


@contextmanager
def _opened_video(path: Path) -> Iterator[Any]:
    av = _library("av")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path}: no video in it")
            yield container
    except (av.FFmpegError, OSError) as error:
        raise InputError(f"{path}: not a readable video ({_reason(error)})") from None


def _pictures(path: Path) -> Iterator[np.ndarray]:
    sequence = _library("PIL.ImageSequence")
    with _opened_picture(path) as opened:
        for frame in sequence.Iterator(opened):
            yield np.asarray(frame.convert("RGB"))


def _animation_rate(path: Path) -> float:
    with _opened_picture(path) as opened:
        opened.load()
        return 1000 / (opened.info.get("duration") or 1000 / FPS)


@contextmanager
def _opened_picture(path: Path) -> Iterator[Any]:
    image = _library("PIL.Image")
    try:
        with image.open(path) as opened:
            yield opened
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable picture ({_reason(error)})") from None


def check_output(path: str | Path, frames: int, codec: str = CODEC) -> None:
    """InputError where `write_clip` could not write so many frames there, before they are made."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in PICTURES and frames > 1:
        raise InputError(f"{path}: one picture for {frames} frames; give a folder, .mp4 or .gif")
    if suffix and suffix not in (*VIDEOS, *ANIMATIONS, *PICTURES):
        known = ", ".join((*VIDEOS, *ANIMATIONS, *PICTURES))
        raise InputError(f"{path}: {suffix} is not known; there are {known}, and folders of png")
    if not path.parent.is_dir():
        raise InputError(f"{path}: no folder {path.parent}; make it first")
    if path.is_dir() and (suffix or any(path.iterdir())):
        raise InputError(f"{path}: the folder is there already; give another name or remove it")
    if not suffix and path.is_file():
        raise InputError(f"{path}: is a file; give a new folder's name, or one with .mp4 or .gif")
    if suffix in VIDEOS:
        _check_codec(path, codec)
    else:
        _library("PIL.Image")


def _check_codec(path: Path, codec: str) -> None:
    av = _library("av")
    try:
        kind = av.codec.Codec(codec, "w").type
    except (av.FFmpegError, ValueError):
        kind = None
    if kind != "video":
        raise InputError(f"{path}: no such video codec as {codec!r} here; h264, hevc, mpeg4 are")


def write_clip(
    path: str | Path, frames: Iterator[np.ndarray], fps: float = FPS, codec: str = CODEC
) -> None:
    """Write frames as they come to a video, an animation, a picture, or a folder of png files.

    The suffix decides, none is a folder. Raises InputError where it cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    with replacing(path) as partial:
        if suffix in VIDEOS:
            _write_video(partial, frames, fps, codec)
        elif suffix in ANIMATIONS:
            _write_animation(partial, frames, fps)
        elif suffix in PICTURES:
            _picture(next(frames), rgb=suffix != ".png").save(partial)
        else:
            partial.mkdir()
            for n, frame in enumerate(frames):
                _picture(frame).save(partial / f"{n:05}.png")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` at the end and goes if anything stops the block.

    Raises InputError for what the disk says.
    """
    partial = path.with_name(f".{path.stem}.partial-{os.getpid()}{path.suffix}")
    try:
        yield partial
        if path.is_dir():
            path.rmdir()  # empty: `check_output` saw to it
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({_reason(error)})") from None
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def _write_video(path: Path, frames: Iterator[np.ndarray], fps: float, codec: str) -> None:
    av = _library("av")
    try:
        with av.open(str(path), "w") as container:
            first = next(frames)
            stream = _stream(container, first.shape, fps, codec)
            for array in chain([first], frames):
                rgb = np.ascontiguousarray(array[..., :3])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, format="rgb24")))
            container.mux(stream.encode(None))
    except av.FFmpegError as error:
        raise OSError(f"{codec}: {_reason(error)}") from None


def _stream(container: Any, shape: tuple[int, ...], fps: float, codec: str) -> Any:
    # libx264's constant rate factor: 18 is taken for visually lossless.
    options = {"crf": "18"} if codec in ("h264", "libx264") else {}
    try:
        stream = container.add_stream(
            codec, rate=Fraction(fps).limit_denominator(1001), options=options
        )
    except ValueError as error:
        raise InputError(f"{codec} in {container.format.name}: {error}") from None
    stream.height, stream.width, stream.pix_fmt = *shape[:2], "yuv420p"
    return stream


def _write_animation(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    first, rest = _picture(next(frames)), map(_picture, frames)
    options = {"lossless": True} if path.suffix.lower() == ".webp" else {}
    first.save(
        path, save_all=True, append_images=rest, duration=round(1000 / fps), loop=0, **options
    )


def _picture(frame: np.ndarray, rgb: bool = False) -> Any:
    image = _library("PIL.Image")
    return image.fromarray(np.ascontiguousarray(frame[..., :3] if rgb else frame))


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"videos and pictures need {name.partition('.')[0]}: pip install 'torchmlx[video]'"
        ) from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)[:200]
