"""Apache SINGA 3.x's DistOpt tutorial: a net as a class, a loop of one's own, and both ways to launch it.

    mpiexec -n 4 python examples/distopt/tutorial.py           # MPI
    python examples/distopt/tutorial.py --nprocs 4             # multiprocessing

SINGA's names and calls; `from singa` has become `from singa_dask`. SINGA's published accuracy after ten epochs on
MNIST is .9827 with 4 processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import numpy as np

from singa_dask import autograd, data_partition, device, load, opt, tensor

CLASSES = 10
LARGEST = {"mnist": 255, "digits": 16}  # largest pixel value


class CNN:
    """Two convolutions and two fully connected layers."""

    def __init__(self, size: int) -> None:
        kernel = 5 if size >= 28 else 3
        self.conv1 = autograd.Conv2d(1, 20, kernel)
        self.conv2 = autograd.Conv2d(20, 50, kernel, padding=0 if size >= 28 else 1)
        self.pooling = autograd.MaxPool2d(2, 2)
        side = ((size - kernel + 1) // 2 - (4 if size >= 28 else 0)) // 2
        self.linear1 = autograd.Linear(side * side * 50, 500)
        self.linear2 = autograd.Linear(500, CLASSES)

    def forward(self, x: tensor.Tensor) -> tensor.Tensor:
        y = self.pooling(autograd.relu(self.conv1(x)))
        y = self.pooling(autograd.relu(self.conv2(y)))
        y = autograd.relu(self.linear1(autograd.flatten(y)))
        return self.linear2(y)


def images(data: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (B, 1, H, W) between 0 and 1, and their classes, one-hot."""
    x, y = load(f"{data}/{split}")
    side = int(np.sqrt(x[0].size))
    return x.reshape(-1, 1, side, side).astype(np.float32) / LARGEST[data], np.eye(CLASSES, dtype=np.int32)[y]


def accuracy(scores: np.ndarray, one_hot: np.ndarray) -> int:
    return int((scores.argmax(axis=1) == one_hot.argmax(axis=1)).sum())


def synchronize(parameter: tensor.Tensor, dist_opt: opt.DistOpt) -> None:
    """Give all processes the mean of their parameters."""
    dist_opt.all_reduce(parameter.data)
    dist_opt.wait()
    parameter /= dist_opt.world_size


def train(settings: argparse.Namespace, nccl_id=None, gpu_num=None, gpu_per_node=None) -> None:
    """One process."""
    sgd = opt.SGD(lr=settings.lr, momentum=0.9, weight_decay=1e-5)
    sgd = opt.DistOpt(
        sgd, nccl_id=nccl_id, gpu_num=gpu_num, gpu_per_node=gpu_per_node, spars=settings.spars, topK=True
    )
    dev = device.create_cuda_gpu_on(sgd.rank_in_local)
    dev.SetRandSeed(settings.seed)
    rank, ranks = sgd.rank_in_global, sgd.world_size

    train_x, train_y = data_partition(*images(settings.data, "train"), rank, ranks)
    test_x, test_y = data_partition(*images(settings.data, "test"), rank, ranks)
    batch = settings.batch
    tx = tensor.Tensor((batch, *train_x.shape[1:]), dev, tensor.float32)
    ty = tensor.Tensor((batch, CLASSES), dev, tensor.int32)
    model = CNN(train_x.shape[-1])

    autograd.training = True
    tx.copy_from_numpy(train_x[:batch])
    ty.copy_from_numpy(train_y[:batch])
    loss = autograd.softmax_cross_entropy(model.forward(tx), ty)
    for p, _ in autograd.backward(loss):
        synchronize(p, sgd)

    step = {
        "full": sgd.backward_and_update,
        "half": sgd.backward_and_update_half,
        "partial": sgd.backward_and_partial_update,
        "sparse": sgd.backward_and_sparse_update,
    }[settings.codec]
    order = np.random.default_rng([settings.seed, rank])
    for epoch in range(settings.epochs):
        began = time.perf_counter()
        autograd.training = True
        rows = order.permutation(len(train_x))
        for b in range(len(train_x) // batch):
            chosen = rows[b * batch : (b + 1) * batch]
            tx.copy_from_numpy(train_x[chosen])
            ty.copy_from_numpy(train_y[chosen])
            loss = autograd.softmax_cross_entropy(model.forward(tx), ty)
            step(loss)

        autograd.training = False
        right = tensor.Tensor((1,), dev, tensor.float32)
        tested = len(test_x) // batch * batch
        for b in range(0, tested, batch):
            tx.copy_from_numpy(test_x[b : b + batch])
            right.data[0] += accuracy(tensor.to_numpy(model.forward(tx)), test_y[b : b + batch])
        sgd.all_reduce(right.data)
        sgd.wait()
        if rank == 0:
            share = tensor.to_numpy(right)[0] / (tested * ranks)
            print(
                f"Epoch {epoch}: training loss {float(loss):.4f}, evaluation accuracy {share:.4f}, "
                f"elapsed time {time.perf_counter() - began:.2f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nprocs", type=int, default=0, help="processes to start; 0 under mpiexec")
    parser.add_argument("--data", choices=LARGEST, default="mnist")
    parser.add_argument("--codec", choices=("full", "half", "partial", "sparse"), default="full")
    parser.add_argument("--spars", type=float, default=0.05, help="share of the gradient that `sparse` sends")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    if not settings.nprocs:
        return train(settings)
    nccl_id = opt.NcclIdHolder()
    processes = [
        multiprocessing.Process(target=train, args=(settings, nccl_id, gpu_num, settings.nprocs))
        for gpu_num in range(settings.nprocs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
