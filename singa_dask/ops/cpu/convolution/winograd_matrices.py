"""Winograd's convolution: fewer multiplications for windows that move by one pixel. Its matrices.

A product of two polynomials is determined by its values at as many points as it has coefficients, and a value takes
one multiplication. The correlation of m + r - 1 pixels d with r weights w, m outputs y, is the transpose of a product:

    y = E_m' (S E_r w * B d),    E_n[i, j] = p_i^j,    B[i, :] = coefficients of prod over j != i of (p - p_j)

with m + r - 2 points p_i and infinity, where a polynomial's value is its highest coefficient, and S the diagonal of
1 / prod over j != i of (p_i - p_j), 1 for infinity. In two dimensions every matrix is applied from both sides. The
maps' transposes give the gradients.

There are 6 x 6 points here, for tiles of m = 4 outputs with windows of r = 3 and m = 2 with r = 5: 36 multiplications
where the sums have 144 and 100. What a float32 sum loses by rounding grows by a factor of five.

Sources: Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2016; for points that round well Barabasz et al., "Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks", 2020.
"""

from __future__ import annotations

import numpy as np

from singa_dask.ops.arrays import Array

# Pairs of opposite numbers share operations. Of all pairs of eighths these lose least by rounding.
POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)
SIZE = len(POINTS) + 1

# Outputs of a tile, one way, for a window of this size.
TILE = {3: 4, 5: 2}


def evaluation(terms: int) -> Array:
    """E: the values of a polynomial of so many coefficients.   (SIZE, terms)"""
    return np.vstack([np.power.outer(POINTS, np.arange(terms)), np.eye(terms)[-1]])


def scaled_evaluation(terms: int) -> Array:
    """S E.   (SIZE, terms)"""
    scales = [1 / np.prod(p - np.delete(POINTS, i)) for i, p in enumerate(POINTS)]
    return np.array([*scales, 1.0])[:, None] * evaluation(terms)


def interpolation() -> Array:
    """B.   (SIZE, SIZE)"""
    rows = [np.append(np.poly(np.delete(POINTS, i))[::-1], 0) for i in range(len(POINTS))]
    return np.array([*rows, np.poly(POINTS)[::-1]])
