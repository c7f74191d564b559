"""Pooling of NHWC images, vectorised over the channels of a pixel.   window: kernel, stride, pad (`Window.sizes`)."""

import numpy as np

from singa_dask.ops.cpu.pooling.pooling_windows import Patch, gradient_of_window, largest_of_window
from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel
from singa_dask.ops.cpu.toolkit.vectors import VECTOR


@inlined
def _channels(begin, channels, overlap):
    """The first channel of the vector from `begin` on, and its lanes.

    Where vectors may `overlap`, the last one is whole, and some channels are computed twice.
    """
    first = min(begin, channels - VECTOR) if overlap and channels > VECTOR else begin
    return first, min(VECTOR, channels - first)


@kernel
def max_pool_vectors(x, window, out, argmax):
    """`max_pool` of float32 with an argmax of uint8."""
    (kh, kw), (sh, sw), (ph, pw) = window
    count, height, width, channels = x.shape
    pixels, best, where = x.ctypes.data, out.ctypes.data, argmax.ctypes.data
    line = width * channels
    for b in range(count):
        for oh in range(out.shape[1]):
            h0 = oh * sh - ph
            i0, i1 = max(0, -h0), min(kh, height - h0)
            for ow in range(out.shape[2]):
                w0 = ow * sw - pw
                j0, j1 = max(0, -w0), min(kw, width - w0)
                rows, columns = max(0, i1 - i0), max(0, j1 - j0)
                start = ((b * height + h0 + i0) * width + w0 + j0) * channels
                target = ((b * out.shape[1] + oh) * out.shape[2] + ow) * channels
                for begin in range(0, channels, VECTOR):
                    c, lanes = _channels(begin, channels, True)
                    patch = Patch(pixels + 4 * (start + c), rows, columns, line, channels, i0 * kw + j0, kw)
                    largest_of_window(patch, best + 4 * (target + c), where + target + c, lanes)


@kernel
def max_pool(x, window, out, argmax):
    """out = largest element under each window, argmax = its position i kw + j."""
    (kh, kw), (sh, sw), (ph, pw) = window
    count, height, width, channels = x.shape
    for b in range(count):
        for oh in range(out.shape[1]):
            h0 = oh * sh - ph
            for ow in range(out.shape[2]):
                w0 = ow * sw - pw
                best = out[b, oh, ow]
                where = argmax[b, oh, ow]
                for c in range(channels):
                    best[c] = -np.inf
                    where[c] = 0
                for i in range(max(0, -h0), min(kh, height - h0)):
                    for j in range(max(0, -w0), min(kw, width - w0)):
                        pixel = x[b, h0 + i, w0 + j]
                        position = argmax.dtype.type(i * kw + j)
                        for c in range(channels):
                            larger = pixel[c] > best[c] or pixel[c] != pixel[c]
                            best[c] = pixel[c] if larger else best[c]
                            where[c] = position if larger else where[c]


@kernel
def max_pool_backward_vectors(dy, argmax, window, dx):
    """`max_pool_backward` of float32 with an argmax of uint8."""
    (kh, kw), (sh, sw), (ph, pw) = window
    count, height, width, channels = dx.shape
    gradient, where, pixels = dy.ctypes.data, argmax.ctypes.data, dx.ctypes.data
    line = width * channels
    # Windows side by side write every pixel once.
    tiled = (kh, kw) == (sh, sw) and ph == pw == 0 and dy.shape[1] * kh == height and dy.shape[2] * kw == width
    for b in range(count):
        if not tiled:
            dx[b].reshape(height * line)[:] = 0
        for oh in range(dy.shape[1]):
            h0 = oh * sh - ph
            i0, i1 = max(0, -h0), min(kh, height - h0)
            for ow in range(dy.shape[2]):
                w0 = ow * sw - pw
                j0, j1 = max(0, -w0), min(kw, width - w0)
                rows, columns = max(0, i1 - i0), max(0, j1 - j0)
                start = ((b * height + h0 + i0) * width + w0 + j0) * channels
                source = ((b * dy.shape[1] + oh) * dy.shape[2] + ow) * channels
                for begin in range(0, channels, VECTOR):
                    c, lanes = _channels(begin, channels, tiled)
                    patch = Patch(pixels + 4 * (start + c), rows, columns, line, channels, i0 * kw + j0, kw)
                    gradient_of_window(gradient + 4 * (source + c), where + source + c, patch, not tiled, lanes)


@kernel
def max_pool_backward(dy, argmax, window, dx):
    """dx = sum over the windows in which a pixel was the largest of their dy."""
    (kh, kw), (sh, sw), (ph, pw) = window
    count, height, width, channels = dx.shape
    for b in range(count):
        dx[b].reshape(height * width * channels)[:] = 0
        for oh in range(dy.shape[1]):
            h0 = oh * sh - ph
            for ow in range(dy.shape[2]):
                w0 = ow * sw - pw
                gradient = dy[b, oh, ow]
                where = argmax[b, oh, ow]
                for i in range(max(0, -h0), min(kh, height - h0)):
                    for j in range(max(0, -w0), min(kw, width - w0)):
                        pixel = dx[b, h0 + i, w0 + j]
                        position = argmax.dtype.type(i * kw + j)
                        for c in range(channels):
                            pixel[c] += gradient[c] if where[c] == position else dx.dtype.type(0)


@kernel
def average_pool(x, window, out):
    """out = sum under each window / (kh kw)."""
    (kh, kw), (sh, sw), (ph, pw) = window
    count, height, width, channels = x.shape
    share = out.dtype.type(1.0 / (kh * kw))
    for b in range(count):
        for oh in range(out.shape[1]):
            h0 = oh * sh - ph
            for ow in range(out.shape[2]):
                w0 = ow * sw - pw
                total = out[b, oh, ow]
                for c in range(channels):
                    total[c] = 0
                for h in range(max(0, h0), min(height, h0 + kh)):
                    for w in range(max(0, w0), min(width, w0 + kw)):
                        pixel = x[b, h, w]
                        for c in range(channels):
                            total[c] += pixel[c]
                for c in range(channels):
                    total[c] *= share


@kernel
def average_pool_backward(dy, window, dx):
    """dx = sum over the windows that cover a pixel of dy / (kh kw)."""
    (kh, kw), (sh, sw), (ph, pw) = window
    count, height, width, channels = dx.shape
    share = dx.dtype.type(1.0 / (kh * kw))
    for b in range(count):
        dx[b].reshape(height * width * channels)[:] = 0
        for oh in range(dy.shape[1]):
            h0 = oh * sh - ph
            for ow in range(dy.shape[2]):
                w0 = ow * sw - pw
                gradient = dy[b, oh, ow]
                for h in range(max(0, h0), min(height, h0 + kh)):
                    for w in range(max(0, w0), min(width, w0 + kw)):
                        pixel = dx[b, h, w]
                        for c in range(channels):
                            pixel[c] += share * gradient[c]
