"""torch._inductor: settings that scripts write. There is no Inductor."""

from . import config as config
