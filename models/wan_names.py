"""What weights of Wan's autoencoders are called in diffusers and in the original release.

ComfyUI's files have the original names. Source: diffusers 0.42, convert_wan_to_diffusers.py.
"""

import re

_COMMON = (
    (r"^conv1\.", "quant_conv."),
    (r"^conv2\.", "post_quant_conv."),
    (r"^(encoder|decoder)\.conv1\.", r"\1.conv_in."),
    (r"\.middle\.0\.", ".mid_block.resnets.0."),
    (r"\.middle\.1\.", ".mid_block.attentions.0."),
    (r"\.middle\.2\.", ".mid_block.resnets.1."),
    (r"\.head\.0\.", ".norm_out."),
    (r"\.head\.2\.", ".conv_out."),
    (r"\.residual\.0\.", ".norm1."),
    (r"\.residual\.2\.", ".conv1."),
    (r"\.residual\.3\.", ".norm2."),
    (r"\.residual\.6\.", ".conv2."),
    (r"\.shortcut\.", ".conv_shortcut."),
)
_PARTS = r"s\.\d+\.(resample|time_conv)\."
_RESIDUAL = (
    (
        r"^encoder\.downsamples\.(\d+)\.downsample" + _PARTS,
        r"encoder.down_blocks.\1.downsampler.\2.",
    ),
    (r"^encoder\.downsamples\.(\d+)\.downsamples\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^decoder\.upsamples\.(\d+)\.upsample" + _PARTS, r"decoder.up_blocks.\1.upsampler.\2."),
    (r"^decoder\.upsamples\.(\d+)\.upsamples\.(\d+)\.", r"decoder.up_blocks.\1.resnets.\2."),
)  # fmt: skip


def diffusers_name(name: str, residual: bool) -> str:
    """A weight's name in diffusers, of that or of its name in the original release."""
    if re.match(r"^(encoder|decoder)\.(conv_in|down_blocks|up_blocks|mid_block|norm_out|conv_out)|"
                r"^(post_)?quant_conv", name):  # fmt: skip
        return name
    for old, new in (*_COMMON, *(_RESIDUAL if residual else ())):
        name = re.sub(old, new, name)
    if residual:
        return name
    name = name.replace("encoder.downsamples.", "encoder.down_blocks.")
    # A flat list of four stages: three residual blocks and, but for the last, an upsampler.
    if found := re.match(r"^decoder\.upsamples\.(\d{1,9})\.(.*)", name):
        stage, place = divmod(int(found[1]), 4)
        part = f"resnets.{place}" if place < 3 else "upsamplers.0"
        name = f"decoder.up_blocks.{stage}.{part}.{found[2]}"
    return name
