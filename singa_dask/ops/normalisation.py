"""Local response normalisation across channels, batch, layer and group normalisation, and cropping of input images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds

GroupSum = Callable[[Array], Array]


class BatchStatistics(NamedTuple):
    """Of a group's mini-batch of `rows`: mean and var, and inverse = 1 / sqrt(var + epsilon), in float64;
    and mean and factor = scale inverse in the type of the rows.   All (C,)."""

    rows: float
    mean: Array
    var: Array
    inverse: Array
    about: Array
    factor: Array


class NormalisationOps:
    """Normalisation over `self.xp`."""

    xp: Any
    sum_rows: Any

    def lrn(
        self, x: Array, local_size: int, alpha: float, beta: float, knorm: float, out: Array, scale: Array
    ) -> Array:
        """out = x scale^-beta with scale = knorm + alpha / local_size * (sum of x^2 over the local_size channels
        around each channel)  (Krizhevsky et al. 2012; dividing alpha by local_size is SINGA's and Caffe's).

        x, out, scale: (..., C); local_size is odd.
        """
        self._channel_sums(x * x, local_size, scale)
        scale *= alpha / local_size
        scale += knorm
        return self.xp.multiply(x, scale**-beta, out=out)

    def lrn_backward(
        self, x: Array, y: Array, scale: Array, dy: Array, local_size: int, alpha: float, beta: float, out: Array
    ) -> Array:
        """out = dy scale^-beta - 2 alpha beta / local_size * x * (sum of dy y / scale over the same channels).

        `out` may be dy.
        """
        sums = self._channel_sums(dy * y / scale, local_size, self.xp.empty_like(x))
        sums *= x
        sums *= 2 * alpha * beta / local_size
        self.xp.multiply(dy, scale**-beta, out=out)
        out -= sums
        return out

    @staticmethod
    def _channel_sums(x: Array, local_size: int, out: Array) -> Array:
        """out[..., c] = sum of x[..., c - local_size // 2 : c + local_size // 2 + 1]."""
        out[...] = x
        for shift in range(1, local_size // 2 + 1):
            out[..., shift:] += x[..., :-shift]
            out[..., :-shift] += x[..., shift:]
        return out

    # Batch normalisation.   x, d, out: (N, C), one value per channel: (C,).

    def channel_moments(self, x: Array, mean: Array) -> Array:
        """The sums over rows of x - mean and of its square: (2, C) in float64."""
        centred = x - mean
        return self._row_sums(centred, self.xp.square(centred))

    def channel_products(self, d: Array, x: Array, mean: Array) -> Array:
        """The sums over rows of d and of d (x - mean): (2, C) in float64."""
        return self._row_sums(d, d * (x - mean))

    def clipped_products(self, d: Array, x: Array, mean: Array, factor: Array, bias: Array, bounds: Bounds) -> Array:
        """d = 0 where (x - mean) factor + bias is not between the bounds; then `channel_products`."""
        y = self.normalise_channels(x, mean, factor, bias, self.xp.empty_like(x))
        d *= (bounds[0] < y) & (y < bounds[1])
        return self.channel_products(d, x, mean)

    def _row_sums(self, *arrays: Array) -> Array:
        sums = self.xp.empty((len(arrays), arrays[0].shape[1]), "float64")
        for array, out in zip(arrays, sums, strict=True):
            self.sum_rows(array, out)
        return sums

    def batch_statistics(
        self, x: Array, scale: Array, epsilon: float, group_sum: GroupSum | None = None
    ) -> BatchStatistics:
        """Of the rows of all workers. group_sum: the sum of an array over the workers; None for a worker alone."""
        xp, added = self.xp, group_sum or _alone
        # About the first row, as the squares of a large mean would hide the variance.
        about = x[:1].sum(axis=0)
        total, squares = self.channel_moments(x, about)
        # Count the rows: layers below may have sliced or concatenated the batch.
        sums = added(xp.append(total + len(x) * about.astype("float64"), float(len(x))))
        count = float(sums[-1])
        mean = sums[:-1] / count
        away = about - mean
        var = added(squares + away * (2 * total + len(x) * away)) / count
        inverse = 1 / xp.sqrt(var + epsilon)
        return BatchStatistics(count, mean, var, inverse, mean.astype(x.dtype), (scale * inverse).astype(x.dtype))

    def batch_norm_gradients(
        self,
        d: Array,
        x: Array,
        of: BatchStatistics,
        values: Sequence[Array],
        grads: Sequence[tuple[Array, bool]],
        share: float,
        group_sum: GroupSum | None = None,
        clip: tuple[Array, Bounds] | None = None,
    ) -> Array:
        """Turns the gradient d for the output into that for x, in place, and writes or adds those of the parameters.

        values: scale, and the running mean and var. grads: of scale, bias, mean, var, each with whether to add to it;
        those of the last two are the shares of what servers subtract, share (running - batch), var unbiased. clip: the
        bias, and the bounds of the output.
        """
        scale, *running = values
        if clip is None:
            sums = self.channel_products(d, x, of.about)
        else:
            sums = self.clipped_products(d, x, of.about, of.factor, *clip)
        sums[1] *= of.inverse
        batch = of.mean, of.var * (of.rows / max(1, of.rows - 1))
        changes = [share * (before - now) for before, now in zip(running, batch, strict=True)]
        for (grad, more), gradient in zip(grads, (sums[1], sums[0], *changes), strict=True):
            if more:
                grad += gradient.astype(grad.dtype)
            else:
                grad[...] = gradient
        # factor (d - mean(d) - normal mean(d normal)), means over the group's rows, with normal = (x - mean) inverse.
        means, factor = (group_sum or _alone)(sums) / of.rows, scale * of.inverse
        weights = (factor, -factor * of.inverse * means[1], -factor * means[0])
        return self.batch_norm_backward(d, x, of.about, *(each.astype(d.dtype) for each in weights))

    def normalise_channels(
        self, x: Array, mean: Array, factor: Array, bias: Array, out: Array, bounds: Bounds = UNBOUNDED
    ) -> Array:
        """out = (x - mean) factor + bias, within bounds."""
        self.xp.subtract(x, mean, out=out)
        out *= factor
        out += bias
        return self.xp.clip(out, *bounds, out=out)

    def batch_norm_backward(self, d: Array, x: Array, mean: Array, factor: Array, slope: Array, shift: Array) -> Array:
        """In place, d = factor d + slope (x - mean) + shift."""
        d *= factor
        d += (x - mean) * slope
        d += shift
        return d

    def group_norm(
        self, x: Array, scale: Array, bias: Array, epsilon: float, out: Array, mean: Array, inverse: Array
    ) -> Array:
        """out = scale (x - mean) inverse + bias, with the mean of each row and group, and inverse = 1 / sqrt(variance
        + epsilon).   x, out: (R, P, G, K), scale, bias: (G, K), mean, inverse: (R, G)."""
        xp = self.xp
        xp.mean(x, axis=(1, 3), out=mean)
        xp.subtract(x, mean[:, None, :, None], out=out)
        inverse[...] = 1 / xp.sqrt(xp.square(out).mean(axis=(1, 3)) + epsilon)
        out *= inverse[:, None, :, None]
        out *= scale
        out += bias
        return out

    def group_norm_backward(
        self, x: Array, scale: Array, mean: Array, inverse: Array, d: Array, grads: Sequence[tuple[Array, bool]]
    ) -> Array:
        """Turns the gradient d for the output of group_norm into that for x, in place: with n = (x - mean) inverse and
        s = scale d, inverse (s - mean(s) - n mean(s n)), the means over a row and group.

        grads: of scale, the sum over rows of d n, and of bias, that of d; (G K,), each with whether to add to it.
        """
        normal = (x - mean[:, None, :, None]) * inverse[:, None, :, None]
        self._add_sums(grads, ((d * normal).sum(axis=(0, 1)), d.sum(axis=(0, 1))))
        d *= scale
        along = (d * normal).mean(axis=(1, 3), keepdims=True)
        d -= d.mean(axis=(1, 3), keepdims=True)
        d -= normal * along
        d *= inverse[:, None, :, None]
        return d

    @staticmethod
    def _add_sums(grads: Sequence[tuple[Array, bool]], sums: Iterable[Array]) -> None:
        for (grad, more), gradient in zip(grads, sums, strict=True):
            grad[...] = gradient.reshape(-1) + (grad if more else 0)

    def crop(self, x: Array, top: Array, left: Array, mirror: Array, mean: Array, scale: float, out: Array) -> Array:
        """out[b, h, w] = scale (x - mean)[b, top_b + h, left_b + w], with w counted from the right where mirror_b.

        x: (B, H, W, C), top, left, mirror: (B,) integers, mean: (H, W, C) -> out: (B, h, w, C).
        """
        xp = self.xp
        height, width = out.shape[1:3]
        columns = xp.arange(width)
        columns = xp.where(mirror[:, None] != 0, width - 1 - columns, columns) + left[:, None]
        rows = (xp.arange(height) + top[:, None])[:, :, None]
        columns = columns[:, None, :]
        images = xp.arange(x.shape[0])[:, None, None]
        xp.subtract(x[images, rows, columns], mean[rows, columns], out=out)
        out *= scale
        return out


def _alone(array: Array) -> Array:
    return array
