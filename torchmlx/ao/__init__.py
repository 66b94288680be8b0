"""torch.ao: of quantisation only what models keep places with."""

from . import quantization as quantization
