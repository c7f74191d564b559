"""Convolution of images channel by channel, each with one filter.

x: (B, H, W C), y: (B, OH, OW C), tiled: (kh, kw, OW C), the weight (kh, kw, C) OW times side by side. With stride 1,
the pixels of a line are one run of memory, and so are the outputs that they contribute to. Otherwise runs are of one
pixel. window: kernel, stride, pad and dilation of a Window. channels: C.
"""

from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel


@inlined
def _covered(j, window, width, count):
    """For column j of the window: the first output whose pixel lies on the image, the one after the last, the outputs
    of a run, and the first pixel. width: of the image; count: OW."""
    stride, shift = window[1][1], j * window[3][1] - window[2][1]
    first = max(0, -(shift // stride))
    stop = max(first, min(count, (width - 1 - shift) // stride + 1))
    return first, stop, (stop - first if stride == 1 else 1), first * stride + shift


@kernel
def convolve(x, tiled, window, channels, y):
    """y = x * weight."""
    (kh, kw), (sh, sw), (ph, _), (dh, _) = window
    height, width, count = x.shape[1], x.shape[2] // channels, y.shape[2] // channels
    for b in range(x.shape[0]):
        for oh in range(y.shape[1]):
            sums = y[b, oh]
            sums[:] = 0
            for i in range(kh):
                h = oh * sh + i * dh - ph
                if h < 0 or h >= height:
                    continue
                for j in range(kw):
                    ow, stop, run, w = _covered(j, window, width, count)
                    size, factors = run * channels, tiled[i, j]
                    while ow < stop:
                        target = sums[ow * channels : ow * channels + size]
                        pixels = x[b, h, w * channels : w * channels + size]
                        for k in range(size):
                            target[k] += pixels[k] * factors[k]
                        ow, w = ow + run, w + run * sw


@kernel
def convolve_backward_weight(x, dy, window, channels, sums):
    """Adds the gradient for `tiled` to sums."""
    (kh, kw), (sh, sw), (ph, _), (dh, _) = window
    height, width, count = x.shape[1], x.shape[2] // channels, dy.shape[2] // channels
    for b in range(x.shape[0]):
        for oh in range(dy.shape[1]):
            for i in range(kh):
                h = oh * sh + i * dh - ph
                if h < 0 or h >= height:
                    continue
                for j in range(kw):
                    ow, stop, run, w = _covered(j, window, width, count)
                    size, target = run * channels, sums[i, j]
                    while ow < stop:
                        upper = dy[b, oh, ow * channels : ow * channels + size]
                        pixels = x[b, h, w * channels : w * channels + size]
                        for k in range(size):
                            target[k] += pixels[k] * upper[k]
                        ow, w = ow + run, w + run * sw


@kernel
def convolve_backward_input(dy, tiled, window, channels, dx):
    """dx = the gradient for x."""
    (kh, kw), (sh, sw), (ph, _), (dh, _) = window
    height, width, count = dx.shape[1], dx.shape[2] // channels, dy.shape[2] // channels
    for b in range(dx.shape[0]):
        for h in range(height):
            dx[b, h, :] = 0
        for oh in range(dy.shape[1]):
            for i in range(kh):
                h = oh * sh + i * dh - ph
                if h < 0 or h >= height:
                    continue
                for j in range(kw):
                    ow, stop, run, w = _covered(j, window, width, count)
                    size, factors = run * channels, tiled[i, j]
                    while ow < stop:
                        upper = dy[b, oh, ow * channels : ow * channels + size]
                        target = dx[b, h, w * channels : w * channels + size]
                        for k in range(size):
                            target[k] += upper[k] * factors[k]
                        ow, w = ow + run, w + run * sw
