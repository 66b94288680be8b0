"""torch.onnx.symbolic_opset11: importable, and empty, since nothing is exported."""
