"""torch.special: filled from the op table (torchmlx/aten/special.py)."""
