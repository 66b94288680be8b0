"""The modules, in files named as torch names them."""

from . import activation, container, dropout, linear, module, normalization, sparse
from .module import Module
