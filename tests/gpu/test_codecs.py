"""Codecs on GPUs: the bytes are those of the host, and gradients never come there."""

import numpy as np
import pytest
from support.topologies import run_topology
from support.trained import POINTS, assert_alike, points_job, saved_at, train_group, write_points

from singa_dask.comm.codecs import BFloat16, Half, Partial, Threshold, TopK
from singa_dask.comm.codecs.on_device import on_device
from singa_dask.job import Job
from singa_dask.ops import get_ops
from singa_dask.training.checkpoint import path_of
from singa_dask.training.prepare import prepare

CODECS = {
    "half": Half,
    "bfloat16": BFloat16,
    "partial": lambda: Partial(0.3),
    "top k": lambda: TopK(0.05),
    "threshold": lambda: Threshold(1e-3),
}
SIZE = 1001


def values(seed):
    """Numbers of all magnitudes, ties, and what is none."""
    draw = np.random.default_rng(seed)
    bits = draw.integers(0, 1 << 32, SIZE, dtype=np.uint32)
    bits[::7] &= 0xFFFFF000  # exact, or between two numbers
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, -7e4, 3.4e38, 3.39e38, 1e-45, 6e-8, 2**-14]
    found = bits.view(np.float32)
    found[: len(special)] = special
    return found


@pytest.fixture
def ops(cupy):
    return get_ops("gpu")


@pytest.mark.parametrize("name", CODECS)
def test_payloads_and_values_have_the_bits_of_the_host(ops, name):
    host, device = CODECS[name](), on_device(CODECS[name](), ops)
    payload, scratch = np.empty(host.max_nbytes(SIZE), np.uint8), np.empty(SIZE, np.float32)
    there, more = ops.asarray(payload), ops.asarray(scratch)
    with np.errstate(all="ignore"):
        for step in range(4):
            for codec in (host, device):
                codec.begin(step)
            x, kept = values(step), values(step + 10)
            gpu_x, gpu_kept = ops.asarray(x), ops.asarray(kept)
            for way in ("encode", "encode_sum", "encode_change"):
                own = {"encode": (), "encode_sum": (kept,), "encode_change": (kept,)}[way]
                extra = (scratch,) if way == "encode_change" else ()
                made = getattr(host, way)(x, *own, payload, *extra)
                own, extra = (gpu_kept,) * len(own), (more,) * len(extra)
                found = getattr(device, way)(gpu_x, *own, there, *extra)
                assert ops.to_host(found).tobytes() == made.tobytes(), (way, step)
                np.testing.assert_array_equal(ops.to_host(gpu_kept), kept, err_msg=f"{way} {step}")
            for add in (False, True):
                host.decode(made, kept, add=add)
                device.decode(found, gpu_kept, add=add)
                np.testing.assert_array_equal(ops.to_host(gpu_kept), kept)
            host.settle(made, kept)
            device.settle(found, gpu_kept)
            np.testing.assert_array_equal(ops.to_host(gpu_kept), kept)
    assert device.overflows == host.overflows and (host.overflows > 0) == (name != "partial")


@pytest.mark.parametrize("kind", ["top k", "threshold"])
def test_of_any_size_the_same_elements_travel_as_on_the_host(ops, kind):
    draw = np.random.default_rng(7)
    sizes = [1, 2, 31, 32, 255, 256, 257, 2047, 2048, 2049, 5000, 70_000]
    for size, share in [*((int(size), draw.choice([1e-3, 0.01, 0.1, 0.6, 1])) for size in sizes), (70_000, 0.3)]:
        levels = draw.choice([1, 3, 1000])  # of few levels, many magnitudes are equal
        x = (draw.integers(-levels, levels + 1, size) / levels).astype(np.float32)
        host = TopK(share) if kind == "top k" else Threshold(float(np.quantile(np.abs(x), 1 - share)))
        device, kept, gpu_kept = on_device(host, ops), np.zeros(size, np.float32), ops.zeros((size,))
        for _ in range(2):
            room = np.empty(host.max_nbytes(size), np.uint8)
            made = host.encode_sum(x, kept, room)
            found = device.encode_sum(ops.asarray(x), gpu_kept, ops.asarray(room))
            assert ops.to_host(found).tobytes() == made.tobytes(), (size, share, levels)
            np.testing.assert_array_equal(ops.to_host(gpu_kept), kept)


def test_the_host_waits_for_nothing_but_the_length_of_a_payload(ops, emulated):
    x, out = ops.asarray(values(0)), ops.zeros((SIZE,))
    for codec, downloads in ((TopK(0.1), 0), (Threshold(0.5), 1)):
        device = on_device(codec, ops)
        device.decode(device.encode(x), out)
        emulated.counts()
        device.decode(device.encode(x), out, add=True)
        assert emulated.counts()["download"] == downloads


@pytest.mark.parametrize("wrong", ["count", "place"])
def test_a_payload_that_is_wrong_shows_as_nan(ops, wrong):
    codec, out = on_device(TopK(0.1), ops), ops.zeros((SIZE,))
    payload = codec.encode(ops.asarray(values(0)))
    if wrong == "count":
        payload[:4] = 255
    else:
        payload[4:12] = 0  # all values in the last of the blocks of 256
        payload[10:12].view(np.uint16)[:] = codec.count(SIZE)
        payload[-codec.count(SIZE) :] = 255
    codec.decode(payload, out, add=True)
    assert np.isnan(ops.to_host(out)[0])


NORM = """layer { name: "norm" type: kBM srclayers: "hidden" }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 } }
  layer { name: "scores" type: kInnerProduct srclayers: "norm" """


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "settings", ["codec=kHalf", "codec=kBFloat16", "codec=kPartial sparsity=0.3", "codec=kTopK sparsity=0.3"]
)
def test_a_job_with_a_codec_computes_on_gpus_what_it_does_on_cpus(gpus, tmp_path, settings):
    if gpus < 3:
        pytest.skip("needs three GPUs")
    write_points(tmp_path, train=90, test=90)
    text = POINTS.replace('layer { name: "scores" type: kInnerProduct srclayers: "data" ', NORM)

    def job(*overrides):
        given = "cluster.nservers_per_group=3", *(f"cluster.{each}" for each in settings.split()), *overrides
        return prepare(Job.from_text(text % {"folder": tmp_path}, given))

    train_group(job(), tmp_path / "cpu")
    report, _ = train_group(job("gpu=[0,1,2]"), tmp_path / "gpu")
    assert "device all_to_all" in report["operations"] and "all_to_all" not in report["operations"]
    train_group(job("gpu=[0,1,2]"), tmp_path / "rest", resume=path_of(tmp_path / "cpu", 4))
    expected = saved_at(tmp_path / "cpu", 8)
    for found in (saved_at(tmp_path / folder, 8) for folder in ("gpu", "rest")):
        assert_alike(found, expected, rtol=1e-4, atol=1e-5)
        for rank, kept in expected.residuals.items():
            for name, array in kept.items():
                np.testing.assert_allclose(found.residuals[rank][name], array, atol=1e-3, err_msg=f"{rank} {name}")


@pytest.mark.timeout(240)
def test_codecs_on_gpus_get_on_with_servers_in_other_processes(gpus, tmp_path):
    if gpus < 3:
        pytest.skip("needs three GPUs")
    write_points(tmp_path, train=90, test=90)
    given = "cluster.server_worker_separate=true", "cluster.codec=kHalf"
    for folder, gpu in (("cpu", ()), ("gpu", ("gpu=[0,1,2]",))):
        run = run_topology(points_job(tmp_path, *given, *gpu), tmp_path / folder)
        assert ("device all_to_all" in run.reports[0]["operations"]) == (folder == "gpu")
    assert_alike(saved_at(tmp_path / "gpu", 8), saved_at(tmp_path / "cpu", 8), rtol=1e-4, atol=1e-5)
