"""torch.nn.functional: filled from the op table (torchmlx/aten)."""
