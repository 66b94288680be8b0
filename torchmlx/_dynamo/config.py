"""torch._dynamo.config: what scripts set is kept, and changes nothing."""

cache_size_limit = recompile_limit = 8
suppress_errors = False
capture_scalar_outputs = capture_dynamic_output_shape_ops = False
