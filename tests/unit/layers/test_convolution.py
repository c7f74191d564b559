"""Windows that do not fit, groups, and the sizes of transposed convolutions."""

import numpy as np
import pytest

from singa_dask.layers import Convolution, TransposedConvolution
from singa_dask.layers.context import Scratch
from singa_dask.layers.upsampling import interpolation
from singa_dask.ops import Ops, Window


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_transposed_convolution_has_the_size_that_its_convolution_reads(stride, more):
    if more >= stride:
        return
    conf = {"num_filters": 3, "kernel": 4, "pad": 1, "stride": stride, "dilation": 2}
    made = TransposedConvolution("t", "x", output_pad=more, **conf).setup((5, 3, 2))
    back = Convolution("c", "x", **conf).setup(made)
    assert back == (5, 3, 3)


@pytest.mark.parametrize("linear", [False, True])
def test_weights_between_pixels_add_up_to_one(linear):
    for size, factor in ((1, 3), (2, 2), (5, 4)):
        table = interpolation(size, factor, linear=linear)
        assert table.shape == (size * factor, size)
        np.testing.assert_allclose(table.sum(axis=1), 1)
        np.testing.assert_allclose(table[::-1, ::-1], table)


def test_offsets_are_where_the_window_lies():
    """By the definition: place + offset lies under the window."""
    window, size = Window((2, 3, 2), (1, 2, 3), (1, 2, 0), (3, 1, 2)), (5, 6, 7)
    x = np.arange(np.prod(size)).reshape(size)
    padded = np.pad(x, [(p, p) for p in window.pad], constant_values=-1)
    output = window.output_size(*size)
    for place, outputs, pixels in window.offsets(*size):
        found = np.full(output, -1)
        found[outputs] = x[pixels]
        for at in np.ndindex(output):
            under = tuple(a * s + p * d for a, s, p, d in zip(at, window.stride, place, window.dilation, strict=True))
            assert found[at] == padded[under]


def test_a_workspace_holds_the_columns_of_all_groups():
    window = Window((3, 3), (1, 1), (1, 1))
    assert Ops().workspace_shape((4, 5, 5, 6), window, 6, 1 << 30, groups=3) == (4 * 25, 9 * 6)


def test_scratch_memory_has_the_type_that_is_computed_in():
    scratch = Scratch()
    for dtype in (np.float32, np.float64):
        assert scratch.of(Ops(dtype), (3,)).dtype == dtype
