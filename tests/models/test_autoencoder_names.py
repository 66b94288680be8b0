"""Files with the original release's names, as .pth and as ComfyUI's safetensors, give one model."""

import re

import numpy as np
import pytest
import torch as real
from safetensors.torch import save_file

from torchmlx.models.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan

from .vae_oracle import diffusers, randomise

# Two residual blocks a stage, as the released models: the original names count with it.
SMALL = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}
WAN22 = {
    **SMALL, "decoder_base_dim": 8, "is_residual": True, "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
# ComfyUI's file of Qwen-Image's has the names of Wan2.1's. There is none of Qwen-Image-2.1's.
MODELS = {
    "Wan2.1": (AutoencoderKLWan, SMALL),
    "Wan2.2": (AutoencoderKLWan, WAN22),
    "Qwen-Image": (AutoencoderKLQwenImage, SMALL),
}
PARTS = {
    "norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}  # fmt: skip
RESNET = re.compile(r"(norm1|conv1|norm2|conv2|conv_shortcut)\.(weight|bias|gamma)$")


def original_name(name, residual):
    """What Wan's own code calls a weight of diffusers' model."""
    for new, old in (("post_quant_conv", "conv2"), ("quant_conv", "conv1")):
        if name.startswith(new):
            return old + name[len(new) :]
    side, _, rest = name.partition(".")
    rest = RESNET.sub(lambda found: f"{PARTS[found[1]]}.{found[2]}", rest)
    rest = re.sub(r"^conv_in", "conv1", rest)
    rest = re.sub(r"^norm_out", "head.0", rest)
    rest = re.sub(r"^conv_out", "head.2", rest)
    rest = re.sub(r"^mid_block\.resnets\.(\d)", lambda n: f"middle.{2 * int(n[1])}", rest)
    rest = rest.replace("mid_block.attentions.0", "middle.1")
    kind = "downsamples" if side == "encoder" else "upsamples"
    if residual:
        place = 2 if side == "encoder" else 3
        rest = re.sub(r"^(?:down|up)_blocks\.(\d)\.resnets\.(\d)", rf"{kind}.\1.{kind}.\2", rest)
        sampler = rf"{kind}.\1.{kind}.{place}"
        rest = re.sub(r"^(?:down|up)_blocks\.(\d)\.(?:down|up)sampler", sampler, rest)
    elif side == "encoder":
        rest = rest.replace("down_blocks", kind)
    else:
        at = re.compile(r"^up_blocks\.(\d)\.(?:resnets\.(\d)|upsamplers\.(0))")
        rest = at.sub(lambda n: f"{kind}.{4 * int(n[1]) + int(n[2] or 3)}", rest)
    return f"{side}.{rest}"


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """Ours of a diffusers folder, and the same weights with their original names."""
    kind, values = MODELS[request.param]
    theirs = randomise(getattr(diffusers, kind.__name__)(**values))
    folder = tmp_path_factory.mktemp("vae")
    theirs.save_pretrained(folder)
    residual = values.get("is_residual", False)
    state = {original_name(name, residual): t for name, t in theirs.state_dict().items()}
    assert not set(state) & set(theirs.state_dict())
    return kind.from_pretrained(folder), state


def equal(model, other):
    names = dict(model.named_parameters())
    assert names.keys() == dict(other.named_parameters()).keys()
    for name, parameter in names.items():
        got = other.get_parameter(name).detach().numpy()
        np.testing.assert_array_equal(got, parameter.detach().numpy(), err_msg=name)


def test_pth(model, tmp_path):
    ours, state = model
    real.save(state, tmp_path / "vae.pth")
    equal(ours, type(ours).from_single_file(tmp_path / "vae.pth", ours.config))


def test_pth_inside_of_another_dictionary(model, tmp_path):
    ours, state = model
    real.save({"state_dict": state}, tmp_path / "vae.pth", _use_new_zipfile_serialization=False)
    equal(ours, type(ours).from_single_file(tmp_path / "vae.pth", ours.config))


def test_safetensors(model, tmp_path):
    ours, state = model
    save_file(state, tmp_path / "vae.safetensors")
    equal(ours, type(ours).from_single_file(tmp_path / "vae.safetensors", ours.config))


def test_original_names_are_those_that_diffusers_reads(model):
    """Its own converter knows Wan2.1's."""
    ours, state = model
    if ours.config.is_residual:
        assert "decoder.upsamples.0.upsamples.3.time_conv.weight" in state
        assert "encoder.downsamples.2.downsamples.2.resample.1.bias" in state
        return
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    converted = convert_wan_vae_to_diffusers(dict(state))
    assert converted.keys() == dict(ours.named_parameters()).keys()
