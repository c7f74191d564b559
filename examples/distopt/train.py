"""A custom training loop without Dask: Apache SINGA 3.x's MNIST recipe with DistOpt.

    mpiexec -n 3 python examples/distopt/train.py --codec half --epochs 2
    python examples/distopt/train.py --nprocs 3 --codec half --epochs 2

Under mpiexec, set OMP_NUM_THREADS=1 if there are more ranks than cores; launch sets it automatically.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from singa_dask import DistOpt, Model, data_partition, launch
from singa_dask.data import Manifest, ShardFolder, resolve
from singa_dask.layers import Convolution, InnerProduct, Pooling, RecordInput, ReLU, SoftmaxLoss
from singa_dask.loops.distopt import world
from singa_dask.updaters import SGD

CODECS = {
    "full": ("backward_and_update", {}),
    "half": ("backward_and_update_half", {}),
    "partial": ("backward_and_partial_update", {}),
    "topk": ("backward_and_sparse_update", {"spars": 0.05, "topK": True}),
    "threshold": ("backward_and_sparse_update", {"spars": 3e-3}),
}
LARGEST = {"mnist": 255, "digits": 16}  # largest pixel value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nprocs", type=int, default=0, help="number of processes to start; 0 under mpiexec")
    parser.add_argument("--codec", choices=CODECS, default="full")
    parser.add_argument("--data", choices=LARGEST, default="mnist")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate per 64 samples of the mini-batch")
    parser.add_argument(
        "--threshold", type=int, default=2097152, help="parameters with more elements are sent separately"
    )
    parser.add_argument("--seed", type=int, default=0)
    settings = vars(parser.parse_args())
    nprocs = settings.pop("nprocs")
    resolve(f"dataset:{settings['data']}/train")  # once, not on every rank
    if nprocs:
        launch(train, nprocs, settings)
    else:
        train(settings)


def train(settings: dict) -> float:
    """Train as one rank. Returns the final test accuracy."""
    x, y = samples(settings["data"], "train")
    x_test, y_test = samples(settings["data"], "test")
    ranks = world().size
    # As in SINGA's recipe, the rate scales with all ranks' samples; with "partial" a rank mostly follows its own
    # gradients.
    lr = settings["lr"] * (1 if settings["codec"] == "partial" else ranks)
    model = build(x.shape[1:], settings["seed"])
    opt = DistOpt(SGD(lr=lr, momentum=0.9, weight_decay=1e-5), model)
    rank = opt.rank_in_global
    x, y = data_partition(x, y, rank, ranks)
    name, options = CODECS[settings["codec"]]
    update, batch, accuracy = getattr(opt, name), settings["batch"], 0.0
    for epoch in range(1, settings["epochs"] + 1):
        began, sent, steps = time.perf_counter(), sum(opt.comm.nbytes.values()), len(x) // batch
        order = np.random.default_rng([settings["seed"], epoch, rank]).permutation(len(x))
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            loss = model(x[rows], y[rows])
            update(loss, settings["threshold"], **options)
        seconds = time.perf_counter() - began
        sent = (sum(opt.comm.nbytes.values()) - sent) // max(1, steps)
        own = model.evaluate(x_test[rank::ranks], y_test[rank::ranks])["accuracy"] * len(y_test[rank::ranks])
        accuracy = float(opt.all_reduce(own)) / len(y_test)
        if rank == 0:
            print(
                f"epoch {epoch}: test accuracy {accuracy:.4f}, loss {float(loss):.4f}, {steps} steps, "
                f"{sent:,} bytes per step and rank, {seconds:.1f} s",
                flush=True,
            )
    return accuracy


def build(shape: tuple[int, ...], seed: int) -> Model:
    """conv20, conv50, ip500, ip10, with smaller kernels for small images."""
    side = shape[0]
    conv = {"kernel": 5} if side >= 28 else {"kernel": 3, "pad": 1}
    init = [{"init": {"type": "kUniformSqrtFanIn"}}, {"init": {"type": "kConstant", "value": 0}}]
    return Model(
        [
            RecordInput(shape=[1, side, side]),
            Convolution(num_filters=20, **conv, param=init),
            ReLU(),
            Pooling(kernel=2, stride=2),
            Convolution(num_filters=50, **conv, param=init),
            ReLU(),
            Pooling(kernel=2, stride=2),
            InnerProduct(num_output=500, param=init),
            ReLU(),
            InnerProduct(num_output=10, param=init),
            SoftmaxLoss(),
        ],
        seed=seed,
    )


def samples(data: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, H, W, 1) from 0 to 1, and labels, of a split of a named data set."""
    manifest = Manifest.load(resolve(f"dataset:{data}/{split}"))
    folder = ShardFolder(manifest)
    folder.verify()
    shards = [folder.reader(index) for index in range(len(manifest.shards))]
    features, labels = (
        np.concatenate([shard.column(column.name) for shard in shards])
        for column in (manifest.features, manifest.targets)
    )
    x = features.astype(np.float32) / LARGEST[data]
    side = round(x.shape[1] ** 0.5)
    return x.reshape(-1, side, side, 1), labels.reshape(-1)


if __name__ == "__main__":
    main()
