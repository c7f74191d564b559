"""`singa-dask shard` on workers."""

import h5py
import numpy as np

from singa_dask.data import Manifest


def test_workers_write_the_same_shards_as_one_process(singa_dask, here, tmp_path, no_leaks):
    draw = np.random.default_rng(0)
    for number in range(3):
        with h5py.File(tmp_path / f"run{number}.h5", "w") as file:
            x = draw.standard_normal((200, 3, 8, 8)).astype("f4")
            file.create_dataset("fields/x", data=x, chunks=(50, 3, 8, 8), compression="gzip")
            file["fields/energy"] = x.mean((1, 2, 3))
    what = ["hdf5", "--source", "run*.h5", "--x", "fields/x", "--target", "fields/energy", "--validation", 0.25]
    here("shard", *what, "--out", "alone")
    together = singa_dask("shard", *what, "--out", "together", "--workers", 2)
    assert "together/train: 450 samples in 1 shard, in random order" in together.out
    for split in ("train", "validation"):
        manifests = [Manifest.load(tmp_path / name / split) for name in ("alone", "together")]
        assert manifests[0].digest == manifests[1].digest
    wrong = singa_dask("shard", *what, "--out", "wrong", "--shards", 1000, "--workers", 2, code=None)
    assert wrong.code in (1, 2) and "nshards" in wrong.err
    assert not (tmp_path / "wrong").exists()
