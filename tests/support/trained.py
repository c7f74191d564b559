"""Training on the threads of this process: a worker group with what it reports, its data, and what it reaches."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from support.played_groups import in_file
from support.shards import write_shards

from singa_dask.comm.threads import run_threads
from singa_dask.job import Job
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import Prepared, prepare
from singa_dask.training.rank_plan import GroupPlan, RankServices, WorkerPlan
from singa_dask.training.worker import train_rank

# Two classes of points, by three workers.
POINTS = """
name: "points" train_steps: 8 disp_freq: 4 test_freq: 4 test_steps: 3 checkpoint_freq: 4 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
cluster { nworkers_per_group: 3 nservers_per_group: 2 }
neuralnet {
  layer { name: "data" type: kRecordInput exclude: kTest store_conf { path: "%(folder)s/train" batchsize: 20 } }
  layer { name: "data" type: kRecordInput include: kTest store_conf { path: "%(folder)s/test" batchsize: 20 } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


def write_points(folder: Path, *, features=3, spread=2.0, seed=0, window=None, **rows: int) -> None:
    """Shards of points of two classes: so many rows of each split."""
    draw = np.random.default_rng(seed)
    options = {} if window is None else {"window": window}
    for split, count in rows.items():
        labels = draw.integers(0, 2, count)
        points = draw.normal(size=(count, features)) + spread * labels[:, None]
        write_shards(folder / split, points.astype(np.float32), labels, overwrite=True, **options)


def points_job(folder: Path, *overrides: str) -> Prepared:
    """A job on the points in a folder."""
    return prepare(Job.from_text(POINTS % {"folder": folder}, overrides))


def train_group(prepared, folder, events=None, *, services=(), decided=None, run="", **group):
    """Train one worker group; the first rank's report and all events. group: of its plan."""
    events = [] if events is None else events
    group.setdefault("gpus", tuple(prepared.job.gpu))
    if isinstance(path := group.get("resume", ()), Path):
        group["resume"] = in_file(path)
    plan = WorkerPlan(
        prepared.job.SerializeToString(), folder, prepared.data, GroupPlan(**group), decided=decided or {}, run=run
    )
    size = prepared.topology.nworkers_per_group
    with ThreadPoolExecutor(size) as pool:
        surroundings = RankServices(pool.submit, **{"emit": events.append, **dict(services)})
        reports = run_threads(size, train_rank, plan, surroundings, timeout_s=20)
    return reports[0], events


def saved_at(folder: Path, step: int):
    """The checkpoint of a step."""
    return checkpoints.load(checkpoints.path_of(folder, step))


def arrays_of(checkpoint):
    """The arrays of a checkpoint: parameters, states of the updater, and what recurrent layers carry."""
    states = {
        f"{state} {name}": value for state, values in checkpoint.updater.items() for name, value in values.items()
    }
    carried = {f"{name} {i}": value for name, values in checkpoint.carried.items() for i, value in enumerate(values)}
    return {**checkpoint.parameters, **states, **carried}


def assert_alike(reached, expected, rtol=0.0, atol=0.0):
    """Checkpoints of the same arrays; by default, of the same bits."""
    found, wanted = arrays_of(reached), arrays_of(expected)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=atol, err_msg=name)
