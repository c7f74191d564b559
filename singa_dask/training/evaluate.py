"""Using a trained model in this process: its metrics, its predictions."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.data import Loader, Manifest, make_stream
from singa_dask.distopt import Model
from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.feed import next_feed
from singa_dask.training.frequencies import batches_of


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


def load_model(where: str | Path, *, device: str = "cpu", device_id: int = 0) -> Model:
    """A trained net to call on arrays, in any process: of a checkpoint, or of the newest one of a run's workspace.

        model = load_model("runs/mnist-allreduce")
        probabilities = model.predict(x)              x: as the loader gives it, normalised as store_conf says

    `DistOpt` may go on with it. Classes of your own are imported as the job names them.
    Raises CheckpointError where there is no checkpoint, or it is damaged.
    """
    found = checkpoints.load(checkpoints.find(Path(where)))
    model = Model(Job.from_text(found.job).net, seed=found.seed, device=device, device_id=device_id)
    model.load_state_dict(found.parameters)
    return model


def measure(job: JobProto, checkpoint: Path, phase: int) -> dict[str, float]:
    """Mean metrics over `test_steps` mini-batches (`validate_steps` for kVal). job: as `prepare` returns it."""
    steps = batches_of(job, phase)
    if steps <= 0:
        key = "test_steps" if phase == Phase.kTest else "validate_steps"
        raise ConfigError(Problem(key, "says how many mini-batches to measure", str(steps), f"Add --set {key}=10."))
    net, how = restore_net(job, phase, checkpoint), algorithm(job.train_one_batch)
    summed: dict[str, Metric] = {}
    for feed, step, _ in _batches(net, job, steps):
        for name, metric in how.test_one_batch(net, feed, step).items():
            summed[name] = summed.get(name, Metric()) + metric
    net.close()
    return {name: metric.mean for name, metric in summed.items()}


def predict(job: JobProto, checkpoint: Path, out: Path) -> int:
    """Write a CSV line for every sample of the test data: its position, label, predicted class and probability;
    where the net has no softmax loss, the output of its loss or last layer. Returns the lines.

    Raises ConfigError where the net has no output to predict with, or reads sequences.
    """
    net = restore_net(job, Phase.kTest, checkpoint)
    scores, classifies = net.scores()
    stores = [net.layers[name].proto.store_conf for name in net.input_layers]
    for name, store in zip(net.input_layers, stores, strict=True):
        if store.sequence:
            hint = "Text comes from `singa-dask sample`; `singa-dask test` measures."
            what = "reads sequences, but predictions are of single samples"
            raise ConfigError(Problem(f"layer {name!r}", what, f"sequences of {store.sequence}", hint))
    total = min(Manifest.load(Path(store.path)).total for store in stores)
    batch = min(total, stores[0].batchsize[0])
    for store in stores:  # every sample once, in the order of the files
        store.shuffle, store.random_skip, store.batchsize[:] = False, 0, [batch]
    written = 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = open(out, "w", newline="")  # noqa: SIM115 - entered below, outside of the try
    except OSError as error:
        raise ConfigError(Problem("out", f"cannot be written ({error.strerror})", str(out))) from error
    with file:
        rows = csv.writer(file)
        for feed, step, order in _batches(net, job, -(-total // batch)):
            net.forward(_labelled(feed), step)
            output = net.ops.to_host(net.output(scores))
            output = output.reshape(len(output), -1)
            labels = next(iter(feed.values())).labels
            labels = None if labels is None else net.ops.to_host(labels)
            if written == 0:
                header = ["class", "probability"] if classifies else [f"output_{i}" for i in range(output.shape[1])]
                rows.writerow(["sample", "label", *header] if labels is not None else ["sample", *header])
            for i in np.flatnonzero(order >= written):  # the last batch wraps around to the first samples
                label = [] if labels is None else [int(labels[i])]
                rows.writerow([int(order[i]), *label, *_prediction(output[i], classifies)])
            written = min(total, written + len(output))
    net.close()
    return written


def _prediction(scores: np.ndarray, classifies: bool) -> list[object]:
    if not classifies:
        return [f"{value:.6g}" for value in scores]
    best = int(scores.argmax())
    return [best, f"{scores[best]:.6f}"]


def _labelled(feed: Mapping[str, Batch]) -> dict[str, Batch]:
    """With zeros where data have no labels: a loss asks for some, and what it measures is not read."""
    return {
        name: Batch(batch.features, np.zeros(len(batch.features), np.int64) if batch.labels is None else batch.labels)
        for name, batch in feed.items()
    }


def _batches(net: Net, job: JobProto, count: int) -> Iterator[tuple[Mapping[str, Batch], Step, np.ndarray]]:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        loaders = {}
        for name in net.input_layers:
            store = net.layers[name].proto.store_conf
            stream = make_stream(store, Manifest.load(Path(store.path)), seed=job.seed, phase=net.phase)
            loaders[name] = stack.enter_context(closing(Loader(stream, store, pool.submit, 0, 1, stop_step=count)))
        for number in range(count):
            feed, step = next_feed(loaders, net.ops, net.phase, number, job.seed)
            order = next(iter(loaders.values())).stream.share(number, 0, 1)[1]
            yield feed, step, order
