"""Kernels in which the 32 threads of a warp share one sum: a thread is lane `lane` of warp `warp`.

    kernels.softmax(x, columns, y, size=LANES * rows)

`total` and `largest` are those of the values of all lanes, on every lane; `before` is the sum of those of lower
lanes. On devices whose warps have other sizes, LANES is defined before.
"""

from __future__ import annotations

LANES = 32
WARPS = 4  # of a block of kernels that need to know it
THREADS = WARPS * LANES

PREAMBLE = f"""
#ifndef LANES
#define LANES {LANES}
#define WARPS {WARPS}
#define THREADS {THREADS}
template <typename V> __device__ V total(V x) {{
    for (int k = LANES / 2; k; k >>= 1) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}}
template <typename V> __device__ V largest(V x) {{
    for (int k = LANES / 2; k; k >>= 1) {{ const V y = __shfl_xor_sync(0xffffffffu, x, k); x = y > x ? y : x; }}
    return x;
}}
template <typename V> __device__ V before(int lane, V x) {{
    V sum = 0;
    for (int k = 1; k < LANES; k <<= 1) {{
        const V y = __shfl_xor_sync(0xffffffffu, x, k);
        if (lane & k) sum += y;
        x += y;
    }}
    return sum;
}}
#endif
"""
LANE = "const int lane = i % LANES; const long long warp = i / LANES;"

# What kernels add to an element as they read it, and its bounds.
BIAS = "raw T bias, bool biased, T low, T high"


def bounded(element: str, channel: str = "c") -> str:
    """const T value: an element with the bias of its channel, within bounds."""
    return f"""const T biased_sum = biased ? {element} + bias[{channel}] : {element};
    const T value = biased_sum < low ? low : biased_sum > high ? high : biased_sum;
"""
