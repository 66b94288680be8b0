"""torch._inductor.config: what scripts set is kept, and changes nothing."""

from types import SimpleNamespace

coordinate_descent_tuning = fx_graph_cache = epilogue_fusion = False
triton, cpp, cuda = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
