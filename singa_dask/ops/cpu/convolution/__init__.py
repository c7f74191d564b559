"""Convolutions: Winograd's algorithm, direct sums, and im2col."""
