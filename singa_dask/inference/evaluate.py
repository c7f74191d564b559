"""What the commands do with a trained net in this process: its metrics, its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.algorithms.measured import Measured
from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.inference.model import Model
from singa_dask.inference.passes import Where, on_gpu
from singa_dask.job import Job, graph_phase
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.job.unroll import plain
from singa_dask.layers import layer_class
from singa_dask.layers.base import OutputLayer
from singa_dask.net import Net
from singa_dask.net.rows import warn_of_mixing
from singa_dask.ops import get_ops
from singa_dask.ops.gpu.turns import in_turns, own_gpu
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint, contents_of
from singa_dask.training.feed import Feed
from singa_dask.training.frequencies import batches_of
from singa_dask.training.kept_code import code_of
from singa_dask.training.placement import compute_of


def _device(job: JobProto) -> dict[str, Any]:
    """Where this process computes for a job, as get_ops takes it."""
    gpu = own_gpu(job.gpu)
    return {} if gpu is None else {"device": "gpu", "device_id": gpu, "compute": compute_of(job)}


def restore_net(job: JobProto, phase: int, path: Path) -> Net:
    """The net of `phase` with a checkpoint's parameters.

    Raises CheckpointError where the checkpoint is damaged or of another net.
    """
    ops = get_ops(**_device(job))
    train = Net(job.neuralnet, Phase.kTrain, ops)
    found = checkpoints.load(path)
    check_fits(found, path, {entry.name: entry.shape for entry in train.flat.entries})
    train.flat.values[...] = ops.asarray(train.flat.flattened(found.trained))
    return Net(job.neuralnet, phase, ops, share=train)


def load_model(
    where: str | Path,
    *,
    device: str | None = None,
    dtype: Any = np.float32,
    device_id: int = 0,
    trust_code: bool = False,
    ema: bool = True,
) -> Model:
    """A trained net to call on arrays, in any process: of a checkpoint file or a run's workspace.

    A workspace stands for its best checkpoint if the job keeps it (`keep_best`), else for the newest one.

        model = load_model("runs/mnist-allreduce")
        probabilities = model.predict(x)              x: in the units of the data

    `DistOpt` can continue training with it. Code of your own comes from the checkpoint as well.

    where: a checkpoint file, or the workspace of a run.
    device: "cpu" or "gpu"; by default a GPU by the same rule as in training: one that this process sees, and that
    `gpu` in the job of the net allows, else the CPU.
    dtype: the type in which the model computes.
    device_id: the number of the GPU.
    trust_code: also run code that another user has written.
    ema: take the moving averages of the parameters, if the updater kept them; False takes the parameters themselves,
    with which training continues.
    Raises CheckpointError where there is no checkpoint, it is damaged, or it needs code that is not trusted.
    """
    path = checkpoints.find(Path(where))
    found = checkpoints.load(path)
    with code_of(found, path, trust=trust_code) as code:
        job = Job.from_text(found.job)
        by_job = Where.of(job.proto)
        chosen = by_job.here(dtype) if device is None else {"device": device, "device_id": device_id}
        model = Model(job.net, seed=found.seed, dtype=dtype, **chosen)
    model.where = by_job if device is None else model.where
    model.code, model.described = code, found.described
    model.load_state_dict(found.trained if ema else found.parameters)
    return model


def measure(job: JobProto, checkpoint: Path, phase: int) -> Measured:
    """The metrics over `test_steps` mini-batches (`validate_steps` for kVal), or the whole set if these are not set.
    job: as `prepare` returns it.

    Raises ConfigError if no input layer reads data for this phase.
    """
    if graph_phase(job.neuralnet.layer, phase) != phase:
        hint = "Add an input layer with include: kTest, or measure the validation data with --validation."
        raise ConfigError(Problem("neuralnet", "has no test data", "no input layer in phase kTest", hint))
    net = restore_net(job, phase, checkpoint)
    warn_of_mixing(net)
    with ThreadPoolExecutor(1) as pool, Feed.open(job, net, pool.submit, stop=batches_of(job, phase) or None) as feed:
        evaluator = Evaluator(net, algorithm(job.train_one_batch), job.metric, rows=feed.rows)
        with closing(in_turns(feed.all(), on_gpu(net.ops), job.gpu)) as batches:
            measured = evaluator.measure(batches)
    net.close()
    return measured


def model_of(job: JobProto, code: CodeBundle | None, path: Path, *, here: bool = True) -> Model:
    """A model to predict with: the net of a job, with a checkpoint's parameters. Layers that write files are left out.

    code: the user's, if the net needs any. here: whether this process predicts; if Dask workers do, the model is on
    the CPU here. Raises CheckpointError where the checkpoint is damaged or of another net.
    """
    found = checkpoints.load(path)
    net = plain(job.neuralnet)
    layers = [layer for layer in net.layer if not issubclass(layer_class(layer), OutputLayer)]
    net.ClearField("layer")
    net.layer.extend(layers)
    model = Model(net, seed=found.seed, **(_device(job) if here else {}))
    model.where = Where.of(job)
    check_fits(found, path, {param.name: param.whole_shape for param in model.net.params})
    model.load_state_dict(found.trained)
    model.code, model.described = code, found.described
    return model


def check_fits(found: Checkpoint, path: Path, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError where a checkpoint has other parameters than a net."""
    shapes = {name: array.shape for name, array in found.parameters.items()}
    if faults := checkpoints.misfits(contents_of(shapes), contents_of(wanted)):
        raise CheckpointError(
            f"{path} does not fit this job: {'; '.join(faults)}. Give the job that it was trained with: "
            "it is job.conf in the folder of its run."
        )
