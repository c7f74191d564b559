"""Update rules in one pass over memory; singa_dask.ops.update has the formulas, and the order of the arguments."""

import numpy as np

from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel


@inlined
def _clip(g, low, high):
    return low if g < low else high if g > high else g


@kernel
def sgd(w, g, v, lr, momentum, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    lr, momentum, weight_decay = real(lr), real(momentum), real(weight_decay)
    clip_low, clip_high = real(clip_low), real(clip_high)
    for k in range(w.size):
        step = momentum * v[k] - lr * (_clip(g[k], clip_low, clip_high) + weight_decay * w[k])
        v[k] = step
        w[k] += step


@kernel
def nesterov(w, g, v, lr, momentum, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    ahead = real(1 + momentum)
    lr, momentum, weight_decay = real(lr), real(momentum), real(weight_decay)
    clip_low, clip_high = real(clip_low), real(clip_high)
    for k in range(w.size):
        previous = v[k]
        step = momentum * previous + lr * (_clip(g[k], clip_low, clip_high) + weight_decay * w[k])
        v[k] = step
        w[k] -= ahead * step - momentum * previous


@kernel
def adagrad(w, g, h, lr, delta, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    lr, delta, weight_decay = real(lr), real(delta), real(weight_decay)
    clip_low, clip_high = real(clip_low), real(clip_high)
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high) + weight_decay * w[k]
        h[k] += gradient * gradient
        w[k] -= lr * gradient / np.sqrt(h[k] + delta)


@kernel
def rmsprop(w, g, h, lr, rho, delta, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    fresh = real(1 - rho)
    lr, rho, delta, weight_decay = real(lr), real(rho), real(delta), real(weight_decay)
    clip_low, clip_high = real(clip_low), real(clip_high)
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high) + weight_decay * w[k]
        h[k] = rho * h[k] + fresh * gradient * gradient
        w[k] -= lr * gradient / np.sqrt(h[k] + delta)


@kernel
def adadelta(w, g, h, u, lr, rho, delta, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    fresh = real(1 - rho)
    lr, rho, delta, weight_decay = real(lr), real(rho), real(delta), real(weight_decay)
    clip_low, clip_high = real(clip_low), real(clip_high)
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high) + weight_decay * w[k]
        h[k] = rho * h[k] + fresh * gradient * gradient
        step = gradient * np.sqrt(u[k] + delta) / np.sqrt(h[k] + delta)
        u[k] = rho * u[k] + fresh * step * step
        w[k] -= lr * step


@kernel
def adam(w, g, m, v, lr, beta1, beta2, correction1, correction2, delta, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    rate, root_correction = real(lr / correction1), real(1 / np.sqrt(correction2))
    fresh1, fresh2, beta1, beta2 = real(1 - beta1), real(1 - beta2), real(beta1), real(beta2)
    delta, weight_decay, clip_low, clip_high = real(delta), real(weight_decay), real(clip_low), real(clip_high)
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high) + weight_decay * w[k]
        m[k] = beta1 * m[k] + fresh1 * gradient
        v[k] = beta2 * v[k] + fresh2 * gradient * gradient
        w[k] -= rate * m[k] / (np.sqrt(v[k]) * root_correction + delta)


@kernel
def adamw(w, g, m, v, lr, shrinkage, beta1, beta2, correction1, correction2, delta, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    kept, rate, root_correction = real(1 - shrinkage), real(lr / correction1), real(1 / np.sqrt(correction2))
    fresh1, fresh2, beta1, beta2 = real(1 - beta1), real(1 - beta2), real(beta1), real(beta2)
    delta, weight_decay, clip_low, clip_high = real(delta), real(weight_decay), real(clip_low), real(clip_high)
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high) + weight_decay * w[k]
        m[k] = beta1 * m[k] + fresh1 * gradient
        v[k] = beta2 * v[k] + fresh2 * gradient * gradient
        w[k] = kept * w[k] - rate * m[k] / (np.sqrt(v[k]) * root_correction + delta)


@kernel
def moving_average(average, w, decay):
    fresh, decay = w.dtype.type(1 - decay), w.dtype.type(decay)
    for k in range(w.size):
        average[k] = decay * average[k] + fresh * w[k]


@kernel
def lamb_moments(w, g, m, v, beta1, beta2, correction1, correction2, delta, weight_decay, clip_low, clip_high):
    """The new moments. Returns the sums of w^2 and of r^2."""
    real = w.dtype.type
    mean_correction, root_correction = real(1 / correction1), real(1 / np.sqrt(correction2))
    fresh1, fresh2, beta1, beta2 = real(1 - beta1), real(1 - beta2), real(beta1), real(beta2)
    delta, weight_decay, clip_low, clip_high = real(delta), real(weight_decay), real(clip_low), real(clip_high)
    of_w, of_r = 0.0, 0.0
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high)
        m[k] = beta1 * m[k] + fresh1 * gradient
        v[k] = beta2 * v[k] + fresh2 * gradient * gradient
        r = m[k] * mean_correction / (np.sqrt(v[k]) * root_correction + delta) + weight_decay * w[k]
        of_w += np.float64(w[k]) * np.float64(w[k])
        of_r += np.float64(r) * np.float64(r)
    return of_w, of_r


@kernel
def lamb_step(w, m, v, rate, correction1, correction2, delta, weight_decay):
    """w -= rate r."""
    real = w.dtype.type
    mean_correction, root_correction = real(1 / correction1), real(1 / np.sqrt(correction2))
    rate, delta, weight_decay = real(rate), real(delta), real(weight_decay)
    for k in range(w.size):
        r = m[k] * mean_correction / (np.sqrt(v[k]) * root_correction + delta) + weight_decay * w[k]
        w[k] -= rate * r


@kernel
def adamax(w, g, m, u, lr, beta1, beta2, correction1, delta, weight_decay, clip_low, clip_high):
    real = w.dtype.type
    rate, fresh1 = real(lr / correction1), real(1 - beta1)
    beta1, beta2, delta = real(beta1), real(beta2), real(delta)
    weight_decay, clip_low, clip_high = real(weight_decay), real(clip_low), real(clip_high)
    for k in range(w.size):
        gradient = _clip(g[k], clip_low, clip_high) + weight_decay * w[k]
        m[k] = beta1 * m[k] + fresh1 * gradient
        size, decayed = abs(gradient), beta2 * u[k]
        u[k] = size if size > decayed else decayed
        w[k] -= rate * m[k] / (u[k] + delta)
