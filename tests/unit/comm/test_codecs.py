"""Codecs: what arrives against what was sent, in every format, for any values."""

import math
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from singa_dask.comm.codecs import CODECS, BFloat16, ErrorFeedback, Full, Half, Partial, Threshold, TopK, codec
from singa_dask.errors import ConfigError
from singa_dask.ops.cpu.elementwise import codec_kernels

DTYPES = [np.float32, np.float64]
MAKERS = {
    "full": Full,
    "half": Half,
    "bfloat16": BFloat16,
    "partial 0.6": lambda: Partial(0.6),
    "partial 1": lambda: Partial(1.0),
    "top 0.3": lambda: TopK(0.3),
    "top 1": lambda: TopK(1.0),
    "threshold 0.5": lambda: Threshold(0.5),
    "threshold 0": lambda: Threshold(0),
}
every_codec = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
# Significant bits with the hidden one, exponent of the least normal number, largest number.
FORMATS = {Half: (11, -14, 65504.0), BFloat16: (8, -126, float(np.float32(2.0**128 - 2.0**120)))}


def vectors(dtype, special=True, **bounds):
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(width=width, allow_nan=special, allow_infinity=special, **bounds)
    return hnp.arrays(dtype, st.integers(0, 40), elements=elements)


any_vectors = st.sampled_from(DTYPES).flatmap(vectors)


def decoded(codec, values):
    out = np.full(values.size, 7, values.dtype)
    codec.decode(codec.encode(values), out)
    return out


# Every codec


@settings(max_examples=30)
@given(values=any_vectors)
def test_sizes_are_what_is_said_and_encoding_is_deterministic(values):
    for name, make in MAKERS.items():
        codec, kept = make(), values.copy()
        payload = codec.encode(values).copy()
        assert values.tobytes() == kept.tobytes(), name
        assert payload.dtype == np.uint8 and payload.ndim == 1, name
        assert codec.nbytes(values.size, values.dtype) in (None, payload.size), name
        assert payload.size <= codec.max_nbytes(values.size, values.dtype), name
        place = np.full(codec.max_nbytes(values.size, values.dtype) + 3, 99, np.uint8)
        again = make().encode(values, place)
        assert np.shares_memory(again, place) or not again.size, name
        assert again.tobytes() == payload.tobytes() and (place[payload.size :] == 99).all(), name


@settings(max_examples=30)
@given(values=any_vectors)
def test_decoding_adds_where_it_is_told_to(values):
    for name, make in MAKERS.items():
        codec = make()
        payload, start = codec.encode(values), np.arange(values.size, dtype=values.dtype)
        out = start.copy()
        codec.decode(payload, out, add=True)
        with np.errstate(invalid="ignore", over="ignore"):
            np.testing.assert_array_equal(out, start + decoded(codec, values), err_msg=name)


@every_codec
@every_dtype
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_a_payload_may_lie_anywhere(make, dtype, offset):
    """As behind others in one buffer; it may be read-only too."""
    values = np.random.default_rng(1).normal(size=31).astype(dtype)
    codec = make()
    place = np.zeros(1000, np.uint8)[offset:]
    payload = codec.encode(values, place)
    payload.flags.writeable = False
    out = np.empty_like(values)
    codec.decode(payload, out)
    np.testing.assert_array_equal(out, decoded(codec, values))


@every_codec
@every_dtype
def test_nothing_travels_of_an_empty_vector(make, dtype):
    codec = make()
    assert codec.encode(np.empty(0, dtype)).size == codec.nbytes(0, dtype) == 0
    assert decoded(codec, np.empty(0, dtype)).size == 0
    assert ErrorFeedback(codec, 0, dtype).encode(np.empty(0, dtype)).size == 0


@every_codec
@every_dtype
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_divergence_shows(make, dtype, special):
    values = np.linspace(-1, 1, 9).astype(dtype)
    values[4] = special
    codec = make()
    np.testing.assert_array_equal(decoded(codec, values)[4], special)
    assert codec.overflows == 0


@every_codec
def test_wrong_arguments_are_refused(make):
    codec, values = make(), np.ones(8, np.float32)
    payload, out = codec.encode(values), np.zeros(8, np.float32)
    for call in (
        lambda: codec.encode(np.ones(8, np.int32)),
        lambda: codec.encode(np.ones(8, np.float16)),
        lambda: codec.encode(np.ones((2, 4), np.float32)),
        lambda: codec.encode(np.ones(16, np.float32)[::2]),
        lambda: codec.encode(values, np.empty(payload.size - 1, np.uint8)),
        lambda: codec.encode(values, np.empty(100, np.int8)),
        lambda: codec.decode(payload[:-1], out),
        lambda: codec.decode(np.concatenate([payload, payload]), out),
        lambda: codec.decode(payload.view(np.int8), out),
        lambda: codec.decode(payload, out.astype(np.int32)),
        lambda: codec.settle(payload[:-1], out),
        lambda: codec.encode_sum(np.ones(3, np.float32), values.copy(), payload.copy()),
        lambda: codec.encode_sum(np.ones(8, np.int32), values.copy(), payload.copy()),
        lambda: codec.encode_change(np.ones(3, np.float32), values.copy(), payload.copy(), np.empty(8, np.float32)),
    ):
        with pytest.raises(ValueError, match="Received"):
            call()
    assert not out.any()


# Full and 16 bits


@given(any_vectors)
def test_full_is_exact(values):
    assert Full.exact and decoded(Full(), values).tobytes() == values.tobytes()
    assert np.shares_memory(Full().encode(values), values) or not values.size


def _rounded(value, format):
    """The float nearest to a finite `value`, ties to even, by exact arithmetic; saturated. And whether it was."""
    significant, least, largest = FORMATS[format]
    exponent = max(math.frexp(value)[1] - 1, least) if value else least
    ulp = math.ldexp(1.0, exponent - significant + 1)
    nearest = round(value / ulp) * ulp  # a division and a product by powers of 2; round() takes ties to even
    return (nearest, False) if abs(nearest) <= largest else (math.copysign(largest, value), True)


@pytest.mark.parametrize("format", [Half, BFloat16])
@settings(max_examples=100)
@given(st.data())
def test_16_bits_are_the_nearest_and_overflows_are_saturated_and_counted(format, data):
    dtype = data.draw(st.sampled_from(DTYPES))
    values = data.draw(
        st.one_of(vectors(dtype, False), vectors(dtype, False, min_value=-(2.0**17), max_value=2.0**17))
    )
    codec = format()
    expected = [_rounded(float(value), format) for value in values]
    np.testing.assert_array_equal(decoded(codec, values), np.array([nearest for nearest, _ in expected], dtype))
    assert codec.overflows == sum(over for _, over in expected)


@every_dtype
def test_half_is_the_half_of_numpy(dtype):
    """All 65536 of them, what lies half way between neighbours, and just beside that."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    out = np.empty(every.size, dtype)
    Half().decode(every.view(np.uint8), out)
    np.testing.assert_array_equal(out, every)
    assert (np.signbit(out) == np.signbit(every))[~np.isnan(every)].all()
    finite = np.sort(every[np.isfinite(every)].astype(dtype))
    middle = (finite[1:] + finite[:-1]) / 2
    for values in (finite, middle, np.nextafter(middle, dtype(9e9)), np.nextafter(middle, dtype(-9e9))):
        got = Half().encode(values).view(np.float16)
        np.testing.assert_array_equal(got, values.astype(np.float16))


@pytest.mark.parametrize("format", [Half, BFloat16])
def test_the_edge_of_the_range(format):
    largest = FORMATS[format][2]
    ends = largest + math.ldexp(1.0, math.frexp(largest)[1] - FORMATS[format][0] - 1)  # half way to the next
    values = np.array([largest, np.nextafter(ends, 0), ends, -ends, 1e300, np.inf, -np.inf, np.nan])
    codec = format()
    np.testing.assert_array_equal(decoded(codec, values), [*[largest] * 3, -largest, largest, np.inf, -np.inf, np.nan])
    assert codec.overflows == 3
    decoded(codec, values)
    assert codec.overflows == 6


# Partial


@given(values=any_vectors, share=st.sampled_from([1e-9, 0.1, 0.25, 1 / 3, 0.5, 0.99, 1.0]), first=st.integers(0, 99))
def test_partial_sends_every_element_in_turn(values, share, first):
    codec, seen = Partial(share), np.zeros(values.size, np.int64)
    width = max(1, math.ceil(share * values.size - 1e-9))
    turns = -(-values.size // width)
    for step in range(first, first + turns):
        codec.begin(step)
        payload = codec.encode(values).copy()
        assert payload.size == (4 + width * values.itemsize if values.size else 0)
        out = np.full(values.size, 7, values.dtype)
        Partial(share).decode(payload, out)  # which run it is the payload says
        sent = np.zeros(values.size, bool)
        start = int(payload[:4].view(np.uint32)[0])
        sent[start : start + width] = True
        seen += sent
        expected = np.where(sent, values, values.dtype.type(0))
        assert out.tobytes() == expected.tobytes()
    assert (seen > 0).all() and seen.sum() == turns * width * bool(values.size)


# Sparse


def _kept(codec, values):
    """Indices and values in the payload, read as its description says."""
    payload = codec.encode(values)
    if not payload.size:
        return np.empty(0, np.int64), values[:0]
    count = codec.elements(payload)
    width, counted, block = (1, np.uint16, 256) if 128 * count >= values.size else (2, np.uint32, 65536)
    nblocks = -(-values.size // block) if values.size > block else 0
    start = 4 + nblocks * np.dtype(counted).itemsize
    end = start + 2 * count
    assert payload.size - 4 < end + width * count <= payload.size and payload.size % 4 == 0
    assert not payload[end + width * count :].any()
    counts = payload[4:start].copy().view(counted) if nblocks else [count]
    offsets = payload[end : end + width * count].copy().view(f"u{width}")
    kept = np.empty(count, values.dtype)
    BFloat16().decode(payload[start:end].copy(), kept)
    return np.repeat(np.arange(len(counts)), counts) * block + offsets, kept


def _order(values):
    """Indices by magnitude, largest first, lower index first among equals; NaN before infinity, by its bits."""
    bits = values.view(f"u{values.itemsize}") & np.array(-1, f"i{values.itemsize}").view(f"u{values.itemsize}") >> 1
    return np.argsort(-bits.astype(object), kind="stable").tolist()


@settings(max_examples=300)
@given(values=any_vectors, share=st.sampled_from([1e-9, 0.01, 0.1, 0.25, 0.5, 0.99, 1.0]))
def test_top_k_keeps_exactly_the_largest(values, share):
    codec = TopK(share)
    indices, kept = _kept(codec, values)
    count = min(values.size, max(1, math.ceil(share * values.size)))
    assert codec.count(values.size) == indices.size == count
    assert indices.tolist() == sorted(_order(values)[:count])
    np.testing.assert_array_equal(kept, decoded(BFloat16(), values[indices]))
    expected = np.zeros_like(values)
    expected[indices] = kept
    np.testing.assert_array_equal(decoded(codec, values), expected)


@every_dtype
@pytest.mark.parametrize("share", [0.001, 1 / 128, 0.01, 0.3])
@pytest.mark.parametrize("sampled", [False, True])
def test_top_k_of_many(dtype, share, sampled):
    rng = np.random.default_rng(5)
    n = 200_003 if sampled else 30_001
    for values in (
        rng.normal(size=n),
        rng.integers(-3, 4, n),
        np.zeros(n),
        rng.normal(size=n) ** 9,
        np.where(np.arange(n) % 61 == 0, 9.0, rng.normal(size=n)),  # the sample shows another picture than the whole
        np.where(np.arange(n) % 61 == 0, 0.0, rng.normal(size=n)),
        np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
    ):
        values = values.astype(dtype)
        count = math.ceil(share * values.size)
        magnitude = np.where(np.isnan(values), np.inf, np.abs(values))
        expected = np.sort(np.argsort(-magnitude, kind="stable")[:count])
        np.testing.assert_array_equal(_kept(TopK(share), values)[0], expected)
        sent = np.zeros_like(values)
        sent[expected] = decoded(BFloat16(), values[expected])
        np.testing.assert_array_equal(decoded(TopK(share), values), sent)


def test_a_share_is_the_decimal_number_that_is_written():
    assert TopK(0.07).count(100) == 7  # 0.07 * 100 is 7.000000000000001
    assert [TopK(0.01).count(n) for n in (0, 1, 100, 101)] == [0, 1, 1, 2]


@settings(max_examples=300)
@given(values=any_vectors, threshold=st.sampled_from([0, 1e-30, 0.5, 1, 1e30, 1e300]))
def test_a_threshold_keeps_what_exceeds_it(values, threshold):
    codec = Threshold(threshold)
    indices, kept = _kept(codec, values)
    with np.errstate(over="ignore"):
        limit = np.minimum(threshold, np.finfo(values.dtype).max).astype(values.dtype)
    assert indices.tolist() == np.flatnonzero(~(np.abs(values) <= limit)).tolist()
    np.testing.assert_array_equal(kept, decoded(BFloat16(), values[indices]))


@pytest.mark.parametrize(
    ("make", "size", "at", "more", "message"),
    [
        (lambda: Partial(0.5), 8, 0, 5, r"begin at 4 at most\. Received: 5"),
        (lambda: TopK(0.5), 8, -2, 2, r"indices below 8\. Received: 8"),
        (lambda: TopK(0.01), 200_100, 7570, 92, "indices below 200100"),
        (lambda: TopK(0.001), 200_100, 823, 242, "indices below 200100"),
        (lambda: TopK(0.01), 200_000, 4, 1, "counts of 2000 values"),
        (lambda: TopK(0.01), 200_000, 5, 128, "counts of 2000 values"),
        (lambda: TopK(0.001), 200_000, 4, 1, "counts of 200 values"),
        (lambda: TopK(0.001), 200_000, 7, 128, "counts of 200 values"),
    ],
)
@every_dtype
def test_places_beyond_the_end_are_refused(dtype, make, size, at, more, message):
    """In the first or the last byte of a start, an index or a count. Nothing is written within the vector either."""
    payload, out = make().encode(np.arange(size, dtype=dtype)), np.ones(size, dtype)
    payload[at] += more
    for call in (make().decode, partial(make().decode, add=True), make().settle):
        with pytest.raises(ValueError, match=message):
            call(payload, out)
    assert (out == 1).all()


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 300, 2000])
def test_a_threshold_of_any_density(kept):
    """Offsets of 8 bits or of 16, one block or several."""
    for size in (2000, 256, 257, 200_003):
        values = np.zeros(size, np.float32)
        values[np.random.default_rng(kept).permutation(size)[:kept]] = 2.5
        codec = Threshold(1.0)
        payload = codec.encode(values)
        assert codec.elements(payload) == min(kept, size) and payload.size <= 8 + 4 * kept + size // 128
        np.testing.assert_array_equal(decoded(codec, values), values)


def test_the_largest_number_is_not_rounded_to_infinity():
    codec, values = TopK(1.0), np.array([np.finfo(np.float32).max, -1], np.float32)
    assert decoded(codec, values).tolist() == [FORMATS[BFloat16][2], -1] and codec.overflows == 1


# Error feedback


@given(values=any_vectors, seed=st.integers(0, 9))
def test_sums_and_changes_are_what_their_parts_are(values, seed):
    """In one pass or in three."""
    for name, make in MAKERS.items():
        draw = np.random.default_rng(seed)
        kept, known = (draw.normal(size=values.size).astype(values.dtype) for _ in range(2))
        with np.errstate(invalid="ignore", over="ignore"):
            whole, change = kept + values, values - known
        parts, codec = make(), make()
        expected = parts.encode(whole).copy()
        parts.settle(expected, whole)
        place = np.empty(codec.max_nbytes(values.size, values.dtype), np.uint8)
        assert codec.encode_sum(values, kept, place).tobytes() == expected.tobytes(), name
        np.testing.assert_array_equal(kept, whole, err_msg=name)
        expected, follows = parts.encode(change).copy(), known.copy()
        parts.decode(expected, follows, add=True)
        assert codec.encode_change(values, known, place, np.empty_like(values)).tobytes() == expected.tobytes(), name
        np.testing.assert_array_equal(known, follows, err_msg=name)
        assert codec.overflows == parts.overflows, name


@every_dtype
@settings(max_examples=30)
@given(steps=st.lists(hnp.arrays(np.int64, 12, elements=st.integers(-5000, 5000)), min_size=1, max_size=8))
def test_what_was_sent_and_what_waits_is_what_came_in(dtype, steps):
    """Integers, so that sums are exact and none but the codec can lose anything."""
    for name, make in MAKERS.items():
        codec = make()
        feedback, arrived = ErrorFeedback(codec, 12, dtype), np.zeros(12, dtype)
        for number, step in enumerate(steps):
            values = step.astype(dtype)
            codec.begin(number)
            codec.decode(feedback.encode(values), arrived, add=True)
            assert (values == step).all(), name
        waiting = 0 if feedback.residual is None else feedback.residual
        np.testing.assert_array_equal(arrived + waiting, np.sum(steps, axis=0), err_msg=name)


def test_what_saturated_travels_later():
    feedback = ErrorFeedback(Half(), 1)
    out = np.zeros(1, np.float32)
    feedback.codec.decode(feedback.encode(np.array([100_000.0], np.float32)), out)
    feedback.codec.decode(feedback.encode(np.zeros(1, np.float32)), out, add=True)
    assert out[0] == pytest.approx(100_000.0, abs=16) and feedback.codec.overflows == 1


@pytest.mark.parametrize("make", [m for name, m in MAKERS.items() if name not in ("full", "partial 0.6")])
@every_dtype
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_of_what_is_not_finite_nothing_waits(make, dtype, special):
    """One infinite gradient is clipped, or shows, once; what waited of it would be sent for ever."""
    feedback, out = ErrorFeedback(make(), 4, dtype), np.zeros(4, dtype)
    feedback.codec.decode(feedback.encode(np.array([1, special, 2, 3], dtype)), out)
    assert np.isnan(out[1]) if np.isnan(special) else out[1] == special
    assert feedback.residual[1] == 0 and np.isfinite(feedback.residual).all()
    feedback.codec.decode(feedback.encode(np.zeros(4, dtype)), out)
    assert np.isfinite(out).all()


@every_codec
@every_dtype
def test_nothing_is_compiled_after_warming_up(make, dtype):
    make().warm_up(dtype)
    found = [vars(kernels) for kernels in (codec_kernels, codec_kernels.HALF, codec_kernels.BFLOAT16)]
    kernels = [kernel for each in found for kernel in each.values() if hasattr(kernel, "signatures")]
    before = [len(kernel.signatures) for kernel in kernels]
    for size in (12, 3000, 200_000):
        values, out = np.random.default_rng(size).normal(size=size).astype(dtype), np.zeros(size, dtype)
        feedback = ErrorFeedback(make(), size, dtype)
        payload = feedback.encode(values)
        feedback.codec.decode(payload, out)
        feedback.codec.decode(payload, out, add=True)
        feedback.codec.encode_change(values, out, payload.copy(), np.empty_like(out))
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_an_exact_codec_keeps_no_residual():
    assert ErrorFeedback(Full(), 3).residual is None


@every_dtype
def test_feedback_is_for_one_size_and_dtype(dtype):
    feedback = ErrorFeedback(Half(), 3, dtype)
    other = np.float32 if dtype is np.float64 else np.float64
    for values in (np.ones(4, dtype), np.ones(3, other)):
        with pytest.raises(ValueError, match="Received"):
            feedback.encode(values)


@every_codec
@every_dtype
def test_a_steady_state_allocates_nothing_of_the_size_of_the_values(make, dtype):
    n = 400_000
    codec, values = make(), np.random.default_rng(2).normal(size=n).astype(dtype)
    feedback, out = ErrorFeedback(codec, n, dtype), np.zeros(n, dtype)

    def step():
        payload = feedback.encode(values)
        codec.decode(payload, out)
        codec.decode(payload, out, add=True)

    step()
    tracemalloc.start()
    try:
        step()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        step()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < n // 4


# By name


def test_codecs_by_name():
    assert sorted(CODECS) == ["kBFloat16", "kFull", "kHalf", "kPartial", "kTopK"]
    assert [type(codec(name)) for name in ("kFull", "kHalf", "kBFloat16")] == [Full, Half, BFloat16]
    assert codec("kTopK", sparsity=0.25).count(8) == 2
    assert type(codec("kHalf", sparsity=None)) is Half


@pytest.mark.parametrize(
    ("name", "given_", "text"),
    [
        ("kTopk", {}, r"cluster\.codec: there is no such codec\. Received: kTopk\. Did you mean kTopK\?"),
        ("gzip", {}, r"cluster\.codec: .*Valid: kBFloat16, kFull"),
        ("kTopK", {}, r"cluster\.sparsity: must be given for kTopK"),
        ("kThreshold", {"sparsity": 0.1}, r"cluster\.codec: there is no such codec\. Received: kThreshold"),
        ("kHalf", {"sparsity": 0.1}, r"cluster\.sparsity: has no meaning for kHalf\. Received: 0\.1\. Leave it out\."),
        ("kTopK", {"sparsity": 0.1, "level": 3}, r"cluster\.level: has no meaning for kTopK"),
        *(("kTopK", {"sparsity": share}, r"cluster\.sparsity: must be above 0") for share in (0, -1, 1.01, True, "1")),
        ("kPartial", {}, r"cluster\.sparsity: must be given for kPartial"),
        ("kPartial", {"sparsity": 2}, r"cluster\.sparsity: must be above 0 and at most 1 for kPartial"),
        ("kTopK", {"sparsity": math.nan}, r"cluster\.sparsity: must be above 0 and at most 1.*Received: nan"),
    ],
)
def test_wrong_settings_say_what_is_right(name, given_, text):
    with pytest.raises(ConfigError, match=text):
        codec(name, **given_)


@pytest.mark.parametrize("threshold", [-1, math.nan, math.inf, True, "1"])
def test_a_threshold_is_a_finite_number(threshold):
    with pytest.raises(ConfigError, match=r"spars: must be a finite number of at least 0.*Received: "):
        Threshold(threshold)
