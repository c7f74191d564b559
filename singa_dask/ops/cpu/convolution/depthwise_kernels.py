"""Convolution of images channel by channel, each with one filter.

x: (B, H, W, C), y: (B, OH, OW, C), weight: (kh, kw, C). window: kernel, stride, pad and dilation of a Window.
"""

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel


@kernel
def convolve(x, weight, window, y):
    """y = x * weight."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    count, height, width, channels = x.shape
    for b in range(count):
        for oh in range(y.shape[1]):
            for ow in range(y.shape[2]):
                sums = y[b, oh, ow]
                for c in range(channels):
                    sums[c] = 0
                for i in range(kh):
                    h = oh * sh + i * dh - ph
                    if h < 0 or h >= height:
                        continue
                    for j in range(kw):
                        w = ow * sw + j * dw - pw
                        if 0 <= w < width:
                            pixels, factors = x[b, h, w], weight[i, j]
                            for c in range(channels):
                                sums[c] += pixels[c] * factors[c]


@kernel
def convolve_backward_weight(x, dy, window, dweight):
    """Adds the gradient for the weight to dweight."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    count, height, width, channels = x.shape
    for b in range(count):
        for oh in range(dy.shape[1]):
            for i in range(kh):
                h = oh * sh + i * dh - ph
                if h < 0 or h >= height:
                    continue
                for ow in range(dy.shape[2]):
                    upper = dy[b, oh, ow]
                    for j in range(kw):
                        w = ow * sw + j * dw - pw
                        if 0 <= w < width:
                            pixels, sums = x[b, h, w], dweight[i, j]
                            for c in range(channels):
                                sums[c] += pixels[c] * upper[c]


@kernel
def convolve_backward_input(dy, weight, window, dx):
    """dx = the gradient for x."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    count, height, width, channels = dx.shape
    for b in range(count):
        for h in range(height):
            for w in range(width):
                pixels = dx[b, h, w]
                for c in range(channels):
                    pixels[c] = 0
        for oh in range(dy.shape[1]):
            for i in range(kh):
                h = oh * sh + i * dh - ph
                if h < 0 or h >= height:
                    continue
                for ow in range(dy.shape[2]):
                    upper = dy[b, oh, ow]
                    for j in range(kw):
                        w = ow * sw + j * dw - pw
                        if 0 <= w < width:
                            pixels, factors = dx[b, h, w], weight[i, j]
                            for c in range(channels):
                                pixels[c] += upper[c] * factors[c]
