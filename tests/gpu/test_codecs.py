"""Codecs on GPUs: the bytes are those of the host, and gradients never come there."""

import numpy as np
import pytest
from support.topologies import run_topology
from support.trained import POINTS, assert_alike, points_job, saved_at, train_group, write_points

from singa_dask.comm.codecs import BFloat16, Half, Partial
from singa_dask.comm.codecs.on_device import on_device
from singa_dask.job import Job
from singa_dask.ops import get_ops
from singa_dask.training.checkpoint import path_of
from singa_dask.training.prepare import prepare

CODECS = {"half": Half, "bfloat16": BFloat16, "partial": lambda: Partial(0.3)}
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
                getattr(host, way)(x, *own, payload, *extra)
                own, extra = (gpu_kept,) * len(own), (more,) * len(extra)
                getattr(device, way)(gpu_x, *own, there, *extra)
                assert ops.to_host(there).tobytes() == payload.tobytes(), (way, step)
                np.testing.assert_array_equal(ops.to_host(gpu_kept), kept, err_msg=f"{way} {step}")
            for add in (False, True):
                host.decode(payload, kept, add=add)
                device.decode(there, gpu_kept, add=add)
                np.testing.assert_array_equal(ops.to_host(gpu_kept), kept)
            host.settle(payload, kept)
            device.settle(there, gpu_kept)
            np.testing.assert_array_equal(ops.to_host(gpu_kept), kept)
    assert device.overflows == host.overflows and (host.overflows > 0) == (name != "partial")


NORM = """layer { name: "norm" type: kBM srclayers: "hidden" }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 } }
  layer { name: "scores" type: kInnerProduct srclayers: "norm" """


@pytest.mark.timeout(240)
@pytest.mark.parametrize("settings", ["codec=kHalf", "codec=kBFloat16", "codec=kPartial sparsity=0.3"])
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
