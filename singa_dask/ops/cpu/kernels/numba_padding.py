"""Images of a batch into larger ones with zeros around them, and back."""

from numba import uint64

from singa_dask.ops.cpu.kernels.numba_kernel import kernel


@kernel
def pad(x, top, left, padded):
    """padded = the images x, from (top, left) on, between zeros.   x: (n, H, W, C), padded: (n or more, H', W', C)."""
    count, height, width, channels = x.shape
    line = padded.shape[2] * channels
    for b in range(count):
        target, source = padded[b].reshape(padded[b].size), x[b].reshape(x[b].size)
        for k in range(uint64(target.size)):
            target[k] = 0
        for h in range(height):
            to, begin = uint64((top + h) * line + left * channels), uint64(h * width * channels)
            for k in range(uint64(width * channels)):
                target[to + k] = source[begin + k]


@kernel
def crop(padded, top, left, x):
    """x = the images of `padded` from (top, left) on; shapes as in `pad`."""
    count, height, width, channels = x.shape
    line = padded.shape[2] * channels
    for b in range(count):
        source, target = padded[b].reshape(padded[b].size), x[b].reshape(x[b].size)
        for h in range(height):
            begin, to = uint64((top + h) * line + left * channels), uint64(h * width * channels)
            for k in range(uint64(width * channels)):
                target[to + k] = source[begin + k]
