"""torch.linalg: filled from the op table (torchmlx/aten)."""
