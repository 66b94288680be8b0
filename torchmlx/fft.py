"""torch.fft: filled from the op table (torchmlx/aten/fft.py)."""
