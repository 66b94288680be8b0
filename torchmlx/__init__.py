"""torch's API on Apple's MLX: `import torchmlx as torch`."""
