"""What is no regular file is refused by what it is, within seconds, wherever a command takes a file."""

import numpy as np
import pytest
from support.shards import write_shards
from support.special_files import CALLED, put

from singa_dask.data.sources.files import find_files
from singa_dask.errors import DataError

pytestmark = pytest.mark.timeout(20, method="signal", func_only=True)
FORMATS = ("csv", "hdf5", "images", "kvfile", "netcdf", "npz", "parquet", "text", "zarr")

JOB = """
name: "points" train_steps: 2
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "data" batchsize: 2 MORE } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


@pytest.fixture
def here(here, tmp_path):
    """The same, beside a job and its data."""
    write_shards(tmp_path / "data", np.eye(6, 4, dtype=np.float32), np.arange(6) % 2)
    for name, more in (("job", ""), ("mean", 'mean_file: "mean.h5"')):
        (tmp_path / f"{name}.conf").write_text(JOB.replace("MORE", more))
    return here


def refused(ran, path, kind):
    said = ran.err + ran.out
    assert ran.code in (1, 2), said
    assert CALLED[kind] in said and path.name in said, said
    assert "does not exist" not in said and "not found" not in said and "Traceback" not in said, said


@pytest.mark.parametrize("kind", ["null", "zero", "fifo", "socket"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_source_that_is_no_file(here, tmp_path, form, kind):
    path = put(kind, tmp_path / "source")
    refused(here("shard", form, "--source", path, "--out", "out"), path, kind)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["fifo", "socket", "null"])
@pytest.mark.parametrize("pattern", ["rows", "rows/*.csv"])
def test_a_file_of_a_source_that_is_none(tmp_path, pattern, kind):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.csv").write_text("a,b\n1,2\n")
    put(kind, tmp_path / "rows" / "2.csv")
    with pytest.raises(DataError, match=rf"2\.csv: .*{CALLED[kind]}"):
        find_files(tmp_path / pattern, [".csv"])


# The words of a command, and which of its files is special.
CALLS = {
    "job": ("check given", "given"),
    "cluster": ("check job.conf --cluster given", "given"),
    "plan": ("plan given", "given"),
    "checkpoint": ("test job.conf --checkpoint given", "given"),
    "predict": ("predict given.h5", "given.h5"),
    "vocabulary": ("shard text --source job.conf --vocab given --out out", "given"),
    "profile": ("plan job.conf --profile given", "given"),
    "scheduler": ("stop --scheduler-file given", "given"),
    "manifest": ("check job.conf", "data/manifest.json"),
    "shard": ("check job.conf", "data/shard-00000.h5"),
    "mean": ("check mean.conf", "mean.h5"),
}


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *((call, kind) for call in ("job", "cluster", "vocabulary") for kind in ("fifo", "socket", "null", "zero")),
        *((call, kind) for call in ("checkpoint", "profile") for kind in ("fifo", "socket", "null", "zero")),
        *((call, kind) for call in ("manifest", "shard") for kind in ("fifo", "null", "folder")),
        *(("mean", kind) for kind in ("fifo", "socket", "null")),
        *(("scheduler", kind) for kind in ("fifo", "folder", "zero")),
        *(("predict", kind) for kind in ("fifo", "null")),
        ("plan", "fifo"),
        ("profile", "folder"),
    ],
)
def test_a_file_that_a_command_is_given(here, tmp_path, call, kind):
    words, place = CALLS[call]
    path = put(kind, tmp_path / place)
    refused(here(*words.split()), path, kind)


def test_a_hint_looks_into_files_only(here, tmp_path):
    put("fifo", tmp_path / "b.conf")
    ran = here("check", "job.conf", "--cluster", "a.conf")
    assert ran.code == 2 and "a.conf" in ran.err
