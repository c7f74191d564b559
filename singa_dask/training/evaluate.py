"""What the commands do with a trained net in this process: its metrics, its predictions."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.algorithms.measured import Measured
from singa_dask.data import Manifest
from singa_dask.distopt import Model
from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.net import Net
from singa_dask.ops import get_ops
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.feed import Feed
from singa_dask.training.frequencies import batches_of
from singa_dask.training.kept_code import code_of


def restore_net(job: JobProto, phase: int, path: Path) -> Net:
    """The net of `phase` with a checkpoint's parameters.

    Raises CheckpointError where the checkpoint is damaged or of another net.
    """
    ops = get_ops("gpu", device_id=job.gpu[0]) if job.gpu else get_ops("cpu")
    train = Net(job.neuralnet, Phase.kTrain, ops)
    given = checkpoints.load(path).parameters
    shapes = {name: array.shape for name, array in given.items()}
    if faults := checkpoints.misfits(shapes, {entry.name: entry.shape for entry in train.flat.entries}):
        raise CheckpointError(
            f"{path} does not fit this job: {'; '.join(faults)}. Give the job that it was trained with: "
            "it is job.conf in the workspace of its run."
        )
    train.flat.values[...] = ops.asarray(train.flat.flattened(given))
    return Net(job.neuralnet, phase, ops, share=train)


def load_model(where: str | Path, *, device: str = "cpu", device_id: int = 0, trust_code: bool = False) -> Model:
    """A trained net to call on arrays, in any process: of a checkpoint, or of the newest one of a run's workspace.

        model = load_model("runs/mnist-allreduce")
        probabilities = model.predict(x)              x: as the loader gives it, normalised as store_conf says

    `DistOpt` may go on with it. Code of your own comes from the checkpoint as well. trust_code: also run code that
    another user has written.
    Raises CheckpointError where there is no checkpoint, it is damaged, or it needs code that is not trusted.
    """
    path = checkpoints.find(Path(where))
    found = checkpoints.load(path)
    with code_of(found, path, trust=trust_code) as code:
        model = Model(Job.from_text(found.job).net, seed=found.seed, device=device, device_id=device_id)
    model.code, model.described = code, found.described
    model.load_state_dict(found.parameters)
    return model


def measure(job: JobProto, checkpoint: Path, phase: int) -> Measured:
    """The metrics over `test_steps` mini-batches (`validate_steps` for kVal). job: as `prepare` returns it."""
    steps = batches_of(job, phase)
    if steps <= 0:
        key = "test_steps" if phase == Phase.kTest else "validate_steps"
        raise ConfigError(Problem(key, "says how many mini-batches to measure", str(steps), f"Add --set {key}=10."))
    net = restore_net(job, phase, checkpoint)
    with ThreadPoolExecutor(1) as pool, Feed.open(job, net, pool.submit, stop=steps) as feed:
        rows = steps * feed.batchsize
        measured = Evaluator(net, algorithm(job.train_one_batch), job.metric, rows=rows).measure(feed.first(steps))
    net.close()
    return measured


def predict(job: JobProto, checkpoint: Path, out: Path) -> int:
    """Write a CSV line for every sample of the test data: its position, label, predicted class and probability.
    Without a softmax loss: the output of the loss or the last layer. Returns the number of lines.

    Raises ConfigError where the net has no output to predict with, or reads sequences.
    """
    net = restore_net(job, Phase.kTest, checkpoint)
    name, classifies = net.scores()
    stores = [net.layers[name].proto.store_conf for name in net.input_layers]
    for layer, store in zip(net.input_layers, stores, strict=True):
        if store.sequence:
            hint = "Text comes from `singa-dask sample`; `singa-dask test` measures."
            what = "reads sequences, but predictions are of single samples"
            raise ConfigError(Problem(f"layer {layer!r}", what, f"sequences of {store.sequence}", hint))
    total = min(Manifest.load(Path(store.path)).total for store in stores)
    batch = min(total, stores[0].batchsize[0])
    for store in stores:  # every sample once, in the order of the files
        store.shuffle, store.random_skip, store.batchsize[:] = False, 0, [batch]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = open(out, "w", newline="")  # noqa: SIM115 - entered below, outside of the try
    except OSError as error:
        raise ConfigError(Problem("out", f"cannot be written ({error.strerror})", str(out))) from error
    evaluator, written = Evaluator(net, algorithm(job.train_one_batch)), 0
    with ExitStack() as stack:
        rows = csv.writer(stack.enter_context(file))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        count = -(-total // batch)
        feed = stack.enter_context(Feed.open(job, net, pool.submit, stop=count))
        for number in range(count):
            mini_batch, step = feed.next(number)
            output = evaluator.predict(mini_batch, step)[name]
            output = output.reshape(len(output), -1)
            labels = next(iter(mini_batch.values())).labels
            labels = None if labels is None else net.ops.to_host(labels)
            if written == 0:
                header = ["class", "probability"] if classifies else [f"output_{i}" for i in range(output.shape[1])]
                rows.writerow(["sample", "label", *header] if labels is not None else ["sample", *header])
            samples = feed.samples(number)
            for i in np.flatnonzero(samples >= written):  # the last batch wraps around to the first samples
                label = [] if labels is None else [int(labels[i])]
                rows.writerow([int(samples[i]), *label, *_prediction(output[i], classifies)])
            written = min(total, written + len(output))
    net.close()
    return written


def _prediction(scores: np.ndarray, classifies: bool) -> list[object]:
    if not classifies:
        return [f"{value:.6g}" for value in scores]
    best = int(scores.argmax())
    return [best, f"{scores[best]:.6f}"]
