"""What all kernels use: compilation, vectors, threads and memory."""
