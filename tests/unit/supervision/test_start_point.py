"""Runs that resume from a checkpoint of a run with other workers."""

import numpy as np
import pytest

from singa_dask.errors import CheckpointError
from singa_dask.job import Job, job_to_text
from singa_dask.supervision.start_point import resumed
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare
from singa_dask.training.workspace import Workspace

JOB = """
name: "digits"
train_steps: 8
seed: {seed}
train_one_batch {{ alg: kBP }}
updater {{ type: kSGD learning_rate {{ type: kFixed base_lr: 0.1 }} }}
neuralnet {{
  layer {{
    name: "data"
    type: kRecordInput
    store_conf {{ path: "dataset:digits/train" batchsize: {batchsize} shape: 1 shape: 8 shape: 8 std_value: 16 }}
  }}
  layer {{ name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 10 }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "data" }}
}}
cluster {{ {cluster} }}
"""
ALLREDUCE = "nworkers_per_group: 2 nservers_per_group: 2"
DOWNPOUR = "nworker_groups: 3"


def prepared(cluster, seed=5, batchsize=64):
    return prepare(Job.from_text(JOB.format(cluster=cluster, seed=seed, batchsize=batchsize)))


@pytest.fixture
def workspace(tmp_path):
    """That of a run of two workers, which has made four steps."""
    made, found = prepared(ALLREDUCE), Workspace(tmp_path / "run")
    values = {name: np.zeros(shape, np.float32) for name, shape in made.shapes.items()}
    saved = checkpoints.Checkpoint(4, 5, job_to_text(made.job), values, {"velocity": values}, made.data)
    checkpoints.save(saved, checkpoints.path_of(found.checkpoints, 4))
    return found


@pytest.mark.parametrize("lives", [False, True])
def test_a_checkpoint_on_another_host_is_not_gone_on_without(workspace, lives):
    workspace.job.touch()
    workspace.tell("saves", host="nodeb")
    assert resumed(prepared(ALLREDUCE), workspace)[0], "it is here"
    checkpoints.path_of(workspace.checkpoints, 4).unlink()
    with pytest.raises(CheckpointError, match="nodeb"):
        resumed(prepared(ALLREDUCE), workspace, lives=lives)


JUDGE = """
  layer {{
    name: "data"
    type: kRecordInput
    store_conf {{ path: "dataset:digits/test" batchsize: {rows} shape: 1 shape: 8 shape: 8 std_value: 16 }}
    include: kVal
  }}
  layer {{ name: "ip1" type: kInnerProduct"""


@pytest.mark.parametrize("decides", ['keep_best: "validate.loss"', "early_stopping { patience: 3 }", ""])
def test_a_best_result_on_other_validation_data_is_not_gone_on_with(tmp_path, decides):
    def judged_by(rows):
        text = JOB.format(cluster=ALLREDUCE, seed=5, batchsize=64).replace(
            '"data"\n    type', '"data" exclude: kVal type'
        )
        text = text.replace('\n  layer { name: "ip1" type: kInnerProduct', JUDGE.format(rows=rows))
        return prepare(Job.from_text(f"{text} validate_freq: 2 validate_steps: 1 {decides}"))

    made, found = judged_by(100), Workspace(tmp_path / "run")
    values = {name: np.zeros(shape, np.float32) for name, shape in made.shapes.items()}
    saved = checkpoints.Checkpoint(4, 5, job_to_text(made.job), values, {"velocity": values}, made.data)
    checkpoints.save(saved, checkpoints.path_of(found.checkpoints, 4))
    assert resumed(judged_by(100), found)[1] == []
    if not decides:
        (note,) = resumed(judged_by(50), found)[1]
        assert note.startswith("the validation data differ from those before step 4")
        return
    with pytest.raises(CheckpointError, match=r"evaluated on other validation data .*keep_best"):
        resumed(judged_by(50), found)


def test_with_the_same_workers_nothing_is_said(workspace):
    found, notes = resumed(prepared(ALLREDUCE), workspace)
    assert (found.step, notes) == (4, [])


@pytest.mark.parametrize("cluster", ["nworkers_per_group: 4 nservers_per_group: 1", ""])
def test_the_workers_of_a_group_may_be_others(workspace, cluster):
    made = prepared(cluster)
    (note,) = resumed(made, workspace)[1]
    before, now = prepared(ALLREDUCE).topology.describe(), made.topology.describe()
    assert note == f"resumed with another cluster. Before: {before}. Now: {now}."


def test_so_may_the_groups(workspace):
    assigned, other = resumed(prepared(DOWNPOUR), workspace)[1]
    assert assigned.startswith("3 worker groups instead of 1 worker group: the training data are assigned anew")
    assert "mini-batch 4 of its own share" in assigned and "Now: Downpour" in other


@pytest.mark.parametrize("cluster", [ALLREDUCE, DOWNPOUR])
@pytest.mark.parametrize("other", [{"seed": 6}, {"batchsize": 32}])
def test_but_not_the_data(workspace, cluster, other):
    with pytest.raises(CheckpointError, match="was made with other data: other shards, batchsize, shuffle or seed"):
        resumed(prepared(cluster, **other), workspace)
