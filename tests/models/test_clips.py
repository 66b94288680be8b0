"""Clips in files: what is written is read again; likeness against its definition."""

import struct

import numpy as np
import pytest
from PIL import Image

from torchmlx.cli.shapes import moving_shapes
from torchmlx.errors import InputError
from torchmlx.models.clips import PICTURES, read_clip, replacing, write_clip
from torchmlx.models.likeness import psnr, sheet, ssim

SHAPES = moving_shapes(63, 64, 96)[::3]
COLOURS = np.stack([SHAPES[..., 0], 255 - SHAPES[..., 1], SHAPES[..., 2] // 2], -1)


@pytest.mark.parametrize(
    ("name", "codec", "least"),
    [
        ("c.mp4", "h264", 36),
        ("c.mp4", "mpeg4", 25),
        ("c.mkv", "ffv1", 36),
        ("c.mov", "h264", 36),
        ("c.webm", "vp9", 30),
        ("c.avi", "mpeg4", 25),
        ("c.gif", "h264", 27),
        ("c.webp", "h264", np.inf),
        ("c", "h264", np.inf),
    ],
)
def test_written_and_read(tmp_path, name, codec, least):
    """Every frame in its place: each is nearer to itself than to its neighbours."""
    write_clip(tmp_path / name, iter(COLOURS), 25, codec)
    frames, fps = read_clip(tmp_path / name)
    assert frames.shape == COLOURS.shape and frames.dtype == np.uint8
    assert fps == pytest.approx(25 if "." in name else 16)
    assert psnr(frames, COLOURS) >= least
    for n in (1, 10, 19):
        here = psnr(frames[n : n + 1], COLOURS[n : n + 1])
        assert here > psnr(frames[n : n + 1], COLOURS[n - 1 : n])
        assert here > psnr(frames[n : n + 1], COLOURS[n + 1 : n + 2])
    np.testing.assert_array_equal(read_clip(tmp_path / name, most=3).frames, frames[:3])


@pytest.mark.parametrize("suffix", PICTURES)
def test_one_picture(tmp_path, suffix):
    write_clip(tmp_path / f"one{suffix}", iter(COLOURS[:1]))
    frames, fps = read_clip(tmp_path / f"one{suffix}")
    assert fps is None and frames.shape == (1, 64, 96, 3)
    assert psnr(frames, COLOURS[:1]) > (25 if suffix in (".jpg", ".jpeg") else 99)


@pytest.mark.parametrize("suffix", [".png", ".webp", ".jpg", ".mp4"])
def test_four_channels(tmp_path, suffix):
    """png and webp keep the alpha plane; what cannot leaves it out."""
    alpha = np.concatenate([COLOURS[:1], np.full((1, 64, 96, 1), 77, np.uint8)], -1)
    write_clip(tmp_path / f"c{suffix}", iter(alpha))
    assert psnr(read_clip(tmp_path / f"c{suffix}").frames, COLOURS[:1]) > 25
    if suffix in (".png", ".webp"):
        with Image.open(tmp_path / f"c{suffix}") as picture:
            assert set(np.asarray(picture.convert("RGBA"))[..., 3].flat) == {77}


def test_grey_and_palette_pictures_become_rgb(tmp_path):
    grey = Image.fromarray(SHAPES[0, ..., 0])
    for mode in ("L", "P", "1", "RGBA", "I;16"):
        grey.convert(mode).save(tmp_path / "c.png")
        assert read_clip(tmp_path / "c.png").frames.shape == (1, 64, 96, 3)
    grey.convert("LA").save(tmp_path / "c.png")
    np.testing.assert_array_equal(
        read_clip(tmp_path / "c.png").frames[0, ..., 1], SHAPES[0, ..., 0]
    )


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_phones_film_sideways(tmp_path, degrees):
    """A display matrix turns the picture clockwise, as players do."""
    write_clip(tmp_path / "c.mp4", iter(COLOURS))
    upright = read_clip(tmp_path / "c.mp4").frames
    content = bytearray((tmp_path / "c.mp4").read_bytes())
    matrix = content.index(b"tkhd") + 4 + 40
    turn = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees]
    a, b, c, d = (n << 16 for n in turn)
    assert struct.unpack(">9i", content[matrix : matrix + 36]) == (
        1 << 16,
        0,
        0,
        0,
        1 << 16,
        *(0,) * 3,
        1 << 30,
    )
    content[matrix : matrix + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    (tmp_path / "c.mp4").write_bytes(content)
    turned = read_clip(tmp_path / "c.mp4").frames
    np.testing.assert_array_equal(turned, np.rot90(upright, -degrees // 90, axes=(1, 2)))


@pytest.mark.parametrize("name", ["c.mp4", "c.gif", "c.webp", "c.png", "c"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_stops_the_frames_leaves_nothing(tmp_path, name, error):
    """Nor does it touch what was there."""

    def frames():
        if name != "c.png":
            yield from COLOURS[:2]
        raise error

    if "." in name:
        (tmp_path / name).write_text("before")
    with pytest.raises(error):
        write_clip(tmp_path / name, frames())
    assert [p.name for p in tmp_path.iterdir()] == ([name] if "." in name else [])
    assert "." not in name or (tmp_path / name).read_text() == "before"


def test_a_folder_that_fills_up(tmp_path):
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="c: cannot be written"), replacing(tmp_path / "c") as new:
        new.mkdir()
        (tmp_path / "c" / "mine.txt").touch()
    assert [p.name for p in tmp_path.rglob("*")] == ["c", "mine.txt"]


def test_psnr():
    noise = np.random.default_rng(0).integers(-9, 10, SHAPES.shape)
    other = (SHAPES.astype(int) + noise).clip(0, 255).astype(np.uint8)
    error = ((SHAPES.astype(float) - other) ** 2).mean()
    assert psnr(SHAPES, other) == pytest.approx(10 * np.log10(255**2 / error))
    assert psnr(SHAPES, SHAPES) == np.inf


def test_ssim():
    """By the definition, a window at a time."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (2, 1, 14, 13, 1)).astype(np.uint8)
    ramp = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(ramp, ramp) / ramp.sum() ** 2
    found = []
    for row in range(4):
        for column in range(3):
            x, y = (p[0, row : row + 11, column : column + 11, 0].astype(float) for p in (a, b))
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            covers = (window * (x - mx) * (y - my)).sum()
            c1, c2 = 2.55**2, 7.65**2
            light = (2 * mx * my + c1) / (mx**2 + my**2 + c1)
            found.append(light * (2 * covers + c2) / (vx + vy + c2))
    assert ssim(a, b) == pytest.approx(np.mean(found))
    assert ssim(a, a) == pytest.approx(1)


def test_sheet():
    got = sheet([SHAPES[:2], COLOURS[:2]], columns=4)
    assert got.shape == (2 * 68, 2 * 100, 3)
    np.testing.assert_array_equal(got[70:134, 102:198], COLOURS[1])
    assert (got[:, 98:102] == 255).all()
