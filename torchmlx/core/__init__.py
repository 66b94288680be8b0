"""The mechanism under every operation: dtypes, devices, cells, views, tensors and the op table."""
