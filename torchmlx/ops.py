"""Operations that torch lacks and models need, on Tensors: filled from the op table (torchmlx/aten)."""
