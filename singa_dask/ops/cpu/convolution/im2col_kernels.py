"""im2col and col2im of NHWC images.   window: kernel, stride, pad (`Window.sizes`); output: rows, columns.

The kw C elements of one kernel row are contiguous in images and columns and move as one run. There indices are
unsigned, since signed ones may be negative and keep LLVM from vectorising (10 times slower). The loops are not a
function of their own, which would halve the speed of short runs.
"""

from numba import uint64

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel


@kernel
def _zero(target, start, stop):
    for k in range(uint64(start), uint64(stop)):
        target[k] = 0


@kernel
def im2col(x, window, output, columns):
    """columns[(b, oh, ow), (i, j, c)] = padded x[b, oh sh + i, ow sw + j, c]."""
    (kh, kw), (sh, sw), (ph, pw) = window
    oh_count, ow_count = output
    count, height, width, channels = x.shape
    run, line = kw * channels, width * channels
    pixels, target = x.reshape(x.size), columns.reshape(columns.size)
    for b in range(count):
        for oh in range(oh_count):
            for i in range(kh):
                h = oh * sh + i - ph
                to = ((b * oh_count + oh) * ow_count * kh + i) * run
                for ow in range(ow_count):
                    start = (ow * sw - pw) * channels
                    if 0 <= h < height and start >= 0 and start + run <= line:
                        first, place = uint64((b * height + h) * line + start), uint64(to)
                        for k in range(uint64(run)):
                            target[place + k] = pixels[first + k]
                    else:
                        low = min(run, max(0, -start)) if 0 <= h < height else run
                        high = max(low, min(run, line - start))
                        first, place = uint64((b * height + h) * line + start + low), uint64(to + low)
                        for k in range(uint64(high - low)):
                            target[place + k] = pixels[first + k]
                        _zero(target, to, to + low)
                        _zero(target, to + high, to + run)
                    to += kh * run


@kernel
def col2im(columns, window, output, x):
    """x = sum of the columns' elements that come from each pixel."""
    (kh, kw), (sh, sw), (ph, pw) = window
    oh_count, ow_count = output
    count, height, width, channels = x.shape
    run, line = kw * channels, width * channels
    pixels, source = x.reshape(x.size), columns.reshape(columns.size)
    _zero(pixels, 0, x.size)
    for b in range(count):
        for oh in range(oh_count):
            for i in range(kh):
                h = oh * sh + i - ph
                if h < 0 or h >= height:
                    continue
                start = ((b * oh_count + oh) * ow_count * kh + i) * run
                for ow in range(ow_count):
                    to = (ow * sw - pw) * channels
                    low = min(run, max(0, -to))
                    high = max(low, min(run, line - to))
                    first, place = uint64(start + low), uint64((b * height + h) * line + to + low)
                    for k in range(uint64(high - low)):
                        pixels[place + k] += source[first + k]
                    start += kh * run
