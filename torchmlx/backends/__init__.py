"""torch.backends: what there is to compute with, and switches that scripts set.

The switches keep what they are set to. None changes a result here.
"""

from . import cuda, cudnn, mkl, mkldnn, mps, openmp

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]
