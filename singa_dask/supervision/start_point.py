"""Where a run begins: at step 0, or at a checkpoint, which a run with other workers may have made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format

from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.job import ClusterTopology
from singa_dask.job.code_changes import changed
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.job.phases import graph_phase
from singa_dask.supervision.facts import Code, Fact, fact
from singa_dask.supervision.words import sentence
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Found
from singa_dask.training.decisions import Decisions
from singa_dask.training.feed import data_key
from singa_dask.training.prepare import Prepared, check_given, training_data
from singa_dask.training.readings import differences, is_reading, reading_of
from singa_dask.training.resolve_data import resolve_data
from singa_dask.training.saving_host import saved_elsewhere
from singa_dask.training.workspace import Workspace

_EVALUATED = {Phase.kVal: "validation", Phase.kTest: "test"}


def fresh(prepared: Prepared, workspace: Workspace) -> tuple[None, Sequence[str]]:
    """The start of a new run, and what the user must know of it. The checkpoints with its first parameters must be
    there, must fit, and must stay there.

    Raises ConfigError or CheckpointError otherwise.
    """
    why, hint = "lies in the workspace that this run replaces", "Pass another --workspace."
    inside = [path for path in prepared.job.checkpoint_path if Path(path).absolute().is_relative_to(workspace.folder)]
    if inside:
        raise ConfigError([Problem("checkpoint_path", why, path, hint) for path in inside])
    return None, check_given(prepared)


def resumed(prepared: Prepared, workspace: Workspace, *, lives: bool = False) -> tuple[Found | None, Sequence[str]]:
    """The newest valid checkpoint of the run in the workspace, whatever workers it had, and what the user must know of
    it.

    lives: whether Dask workers may still have the run's state in memory; then no checkpoint is needed.
    Raises CheckpointError if there is none here, or if it is of another net, updater or data.
    """
    found, faults = checkpoints.newest(workspace.checkpoints)
    elsewhere = "" if found or faults else saved_elsewhere(workspace.folder)
    if found is None and lives and workspace.job.exists() and not elsewhere:
        return None, [sentence(fact(Code.ONLY_IN_MEMORY))]
    if found is None:
        raise CheckpointError(
            f"{workspace.checkpoints}: no valid checkpoint to resume from. "
            + (
                elsewhere
                or "Run without --resume, or give the --workspace of the earlier run"
                f"{workspace.earlier()}. {' '.join(faults)}".rstrip()
            )
        )
    _check_same(prepared, workspace, found)
    before, topology = text_format.Parse(found.job, JobProto()).cluster, prepared.topology
    said = [fact(Code.PASSED_OVER, cause=fault) for fault in faults]
    was, now = before.nworker_groups, topology.nworker_groups
    if training_data(found.data) != training_data(prepared.data):
        data = prepared.data if was == now else _dealt(prepared, was)
        if training_data(found.data) != training_data(data):
            raise CheckpointError(f"{found.path} {_other_data(prepared, found, data)}. {_way_out(workspace, found)}")
        said.append(fact(Code.DEALT_ANEW, now=now, before=was, step=found.step))
    said += _other_evaluated(prepared, workspace, found)
    if found.job and (earlier := ClusterTopology.from_proto(before).describe()) != topology.describe():
        said.append(fact(Code.OTHER_CLUSTER, before=earlier, now=topology.describe()))
    if prepared.code and (names := changed(checkpoints.load(found.path).code, prepared.code)):
        said.append(fact(Code.OTHER_CODE, names=tuple(names)))
    return found, [sentence(each) for each in said]


def _check_same(prepared: Prepared, workspace: Workspace, found: Found) -> None:
    """A checkpoint of another net or updater, or from beyond the end, is no point to resume from."""
    faults = []
    if found.step > prepared.job.train_steps:
        faults.append(f"it is from step {found.step}, beyond train_steps, {prepared.job.train_steps}")
    faults += checkpoints.misfits(found.contents, prepared.contents)
    if faults:
        raise CheckpointError(
            f"{found.path} does not fit this job: {'; '.join(faults)}. Resume with what {workspace.job} says."
        )


def _other_evaluated(prepared: Prepared, workspace: Workspace, found: Found) -> Iterator[Fact]:
    """Which evaluations have other data than before. Raises CheckpointError where the best result so far or the
    learning rate depends on them."""
    for phase in _EVALUATED:
        before, now = (
            {key: value for key, value in of.items() if key.startswith(data_key(phase, ""))}
            for of in (found.data, prepared.data)
        )
        if not before or before == now:
            continue
        if phase in Decisions(prepared.job).phases:
            raise CheckpointError(
                f"{found.path} was evaluated on other {_EVALUATED[phase]} data than those of this job, and keep_best, "
                f"early_stopping or the learning rate depend on them. {_way_out(workspace, found)}"
            )
        yield fact(Code.OTHER_EVALUATED, phase=_EVALUATED[phase], step=found.step)


def _way_out(workspace: Workspace, found: Found) -> str:
    return (
        f"Resume with what {workspace.job} says, or start from its parameters in another workspace: "
        f"--workspace NEW --set 'checkpoint_path=[\"{found.path}\"]'."
    )


def _dealt(prepared: Prepared, groups: int) -> Mapping[str, str]:
    """The fingerprints of this job's data, if these are assigned to so many worker groups."""
    job = JobProto()
    job.CopyFrom(prepared.job)
    job.cluster.nworker_groups = groups
    return resolve_data(job, [graph_phase(job.neuralnet.layer, Phase.kTrain)])[0]


def _other_data(prepared: Prepared, found: Found, data: Mapping[str, str]) -> str:
    """How the checkpoint's data differ from those of this job. data: the fingerprints of these."""
    samples, own = ({k: v for k, v in training_data(of).items() if not is_reading(k)} for of in (found.data, data))
    if samples != own:
        return "was made with other data: other shards, batchsize, shuffle or seed"
    others = differences(text_format.Parse(found.job, JobProto()), prepared.job, reading_of)
    return f"was trained on samples that this job reads otherwise: {'; '.join(others)}"
