"""What multiprocessing's fork server imports first under the runner: `import torch` is torchmlx."""

from . import runner

runner.install()
