"""Matrix products: which one the row tile computes in place of BLAS, and its kernels."""
