"""Kernels for sliding windows: convolution and pooling, one thread per element of the output."""

from __future__ import annotations

from singa_dask.ops.gpu.warps import BIAS, bounded

# Lengths are int32, element counts long long: a buffer of columns may exceed 2^31 elements.
_WINDOW = "int32 kh, int32 kw, int32 sh, int32 sw, int32 ph, int32 pw"
_PIXEL = """
    const long long c = i % channels, b = i / channels / width / height;
    const int w = i / channels % width, h = i / channels / width % height;
"""
_OUTPUT = """
    const long long c = i % channels, b = i / channels / ow_count / oh_count;
    const int w0 = i / channels % ow_count * sw - pw, h0 = i / channels / ow_count % oh_count * sh - ph;
"""
# The windows that cover pixel (h, w): first and last output row and column.
_COVERED = """
    const int oh_first = h + ph < kh ? 0 : (h + ph - kh) / sh + 1, oh_last = min((h + ph) / sh, oh_count - 1);
    const int ow_first = w + pw < kw ? 0 : (w + pw - kw) / sw + 1, ow_last = min((w + pw) / sw, ow_count - 1);
"""
_SIZES = "int32 height, int32 width, int32 channels, int32 oh_count, int32 ow_count"
# Of volumes, dilated and in groups of channels; images are volumes of one layer.
_VOLUME = ", ".join(
    f"int32 {length}"
    for length in (
        *(
            "images",
            "depth",
            "height",
            "width",
            "channels",
            "groups",
            "od_count",
            "oh_count",
            "ow_count",
            "kd",
            "kh",
            "kw",
        ),
        *("sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"),
    )
)

KERNELS: dict[str, tuple[str, str, str]] = {
    "im2col": (
        f"raw T x, {_SIZES}, {_WINDOW}, {BIAS}",
        "T column",
        f"""
    const long long c = i % channels, rest = i / channels / kw / kh, b = rest / ow_count / oh_count;
    const int w = rest % ow_count * sw - pw + i / channels % kw;
    const int h = rest / ow_count % oh_count * sh - ph + i / channels / kw % kh;
    const bool inside = h >= 0 && h < height && w >= 0 && w < width;
    const T pixel = inside ? x[((b * height + h) * width + w) * channels + c] : T(0);
    {bounded("pixel")} column = inside ? value : T(0);
    """,
    ),
    "col2im": (
        f"raw T columns, {_SIZES}, {_WINDOW}, {BIAS}, bool more",
        "T pixel",
        f"""{_PIXEL}{_COVERED}
    T total = more ? pixel : T(0);
    for (int oh = oh_first; oh <= oh_last; ++oh)
        for (int ow = ow_first; ow <= ow_last; ++ow) {{
            const long long row = (b * oh_count + oh) * ow_count + ow;
            total += columns[((row * kh + h + ph - oh * sh) * kw + w + pw - ow * sw) * channels + c];
        }}
    {bounded("total")} pixel = value;
    """,
    ),
    "max_pool": (
        f"raw T x, {_SIZES}, {_WINDOW}, {BIAS}",
        "T y, S argmax",
        f"""{_OUTPUT}
    bool any = false;
    T best = 0;
    int position = 0;
    for (int h = max(h0, 0); h < min(h0 + kh, height); ++h)
        for (int w = max(w0, 0); w < min(w0 + kw, width); ++w) {{
            const T pixel = x[((b * height + h) * width + w) * channels + c];
            {bounded("pixel")}
            if (any && value <= best) continue;
            if (any && best != best && value == value) continue;
            any = true;
            best = value;
            position = (h - h0) * kw + w - w0;
        }}
    y = best;
    argmax = position;
    """,
    ),
    "max_pool_backward": (
        f"raw T dy, raw S argmax, {_SIZES}, {_WINDOW}, bool more",
        "T dx",
        f"""{_PIXEL}{_COVERED}
    T total = more ? dx : T(0);
    for (int oh = oh_first; oh <= oh_last; ++oh)
        for (int ow = ow_first; ow <= ow_last; ++ow) {{
            const long long k = ((b * oh_count + oh) * ow_count + ow) * channels + c;
            if ((int)argmax[k] == (h + ph - oh * sh) * kw + w + pw - ow * sw) total += dy[k];
        }}
    dx = total;
    """,
    ),
    "average_pool": (
        f"raw T x, {_SIZES}, {_WINDOW}",
        "T y",
        f"""{_OUTPUT}
    T total = 0;
    for (int h = max(h0, 0); h < min(h0 + kh, height); ++h)
        for (int w = max(w0, 0); w < min(w0 + kw, width); ++w)
            total += x[((b * height + h) * width + w) * channels + c];
    y = total / T(kh * kw);
    """,
    ),
    "average_pool_backward": (
        f"raw T dy, {_SIZES}, {_WINDOW}",
        "T dx",
        f"""{_PIXEL}{_COVERED}
    T total = 0;
    for (int oh = oh_first; oh <= oh_last; ++oh)
        for (int ow = ow_first; ow <= ow_last; ++ow)
            total += dy[((b * oh_count + oh) * ow_count + ow) * channels + c];
    dx = total / T(kh * kw);
    """,
    ),
    "im2col_volume": (
        f"raw T x, {_VOLUME}, {BIAS}",
        "T column",
        f"""
    long long rest = i / channels;
    const long long c = i % channels;
    const int kx = rest % kw; rest /= kw;
    const int ky = rest % kh; rest /= kh;
    const int kz = rest % kd; rest /= kd;
    const int w = rest % ow_count * sw - pw + kx * dw; rest /= ow_count;
    const int h = rest % oh_count * sh - ph + ky * dh; rest /= oh_count;
    const int d = rest % od_count * sd - pd + kz * dd; rest /= od_count;
    const long long b = rest % images, g = rest / images;
    const bool inside = d >= 0 && d < depth && h >= 0 && h < height && w >= 0 && w < width;
    const T pixel = inside ? x[((((b * depth + d) * height + h) * width + w) * groups + g) * channels + c] : T(0);
    {bounded("pixel", "g * channels + c")} column = inside ? value : T(0);
    """,
    ),
    "col2im_volume": (
        f"raw T columns, {_VOLUME}, {BIAS}, bool more",
        "T pixel",
        f"""
    long long rest = i / channels;
    const long long c = i % channels, g = rest % groups; rest /= groups;
    const int w = rest % width + pw; rest /= width;
    const int h = rest % height + ph; rest /= height;
    const int d = rest % depth + pd;
    const long long b = rest / depth;
    T total = more ? pixel : T(0);
    for (int kz = 0; kz < kd; ++kz) {{
        const int z = d - kz * dd;
        if (z < 0 || z % sd || z / sd >= od_count) continue;
        for (int ky = 0; ky < kh; ++ky) {{
            const int y = h - ky * dh;
            if (y < 0 || y % sh || y / sh >= oh_count) continue;
            for (int kx = 0; kx < kw; ++kx) {{
                const int x = w - kx * dw;
                if (x < 0 || x % sw || x / sw >= ow_count) continue;
                const long long row = (((g * images + b) * od_count + z / sd) * oh_count + y / sh) * ow_count + x / sw;
                total += columns[(((row * kd + kz) * kh + ky) * kw + kx) * channels + c];
            }}
        }}
    }}
    {bounded("total", "g * channels + c")} pixel = value;
    """,
    ),
}
