"""Array-level kernels: `mx.array` in, `mx.array` out. One file, one kernel."""
