"""Max and average pooling."""
