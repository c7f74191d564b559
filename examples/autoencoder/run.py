"""The deep auto-encoder of Hinton and Salakhutdinov (Science, 2006) on MNIST, as Apache SINGA's five jobs.

    python examples/autoencoder/run.py                                                   # in the repository's root
    python examples/autoencoder/run.py --cluster examples/clusters/allreduce.conf

Trains four stacked RBMs, and then the auto-encoder that they initialise. Compares its mean squared error per test
pixel with the auto-encoder without pre-training and with a linear code of the same size (PCA).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from singa_dask import Job, train
from singa_dask.data import Manifest, ShardFolder, resolve

HERE = Path(__file__).parent
PIXELS, CODE = 784, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cluster", help="file with a cluster block; default: one worker")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field of every job"
    )
    args = parser.parse_args()

    def run(conf: str, name: str, *overrides: str) -> dict:
        job = Job.from_file(HERE / conf, [*overrides, *args.set], cluster=args.cluster)
        return train(job, workspace=f"runs/autoencoder/{name}").summary

    for number in range(1, 5):
        run(f"rbm{number}.conf", f"rbm{number}")
    errors = {
        "pre-trained and fine-tuned": pixel_error(run("job.conf", "fine-tuned")),
        "without pre-training": pixel_error(run("job.conf", "random", "checkpoint_path=[]")),
        f"PCA, {CODE} components": pca_error(images("train"), images("test")),
    }
    print(f"\n{'squared error per test pixel':32}")
    for name, error in errors.items():
        print(f"{name:32}{error:.5f}")


def pixel_error(summary: dict) -> float:
    """EuclideanLoss is half the squared error of an image."""
    return 2 * summary["test"]["loss"] / PIXELS


def images(split: str) -> np.ndarray:
    """All images of a split: (N, 784), from 0 to 1."""
    folder = ShardFolder(Manifest.load(resolve(f"dataset:mnist/{split}")))
    shards = [folder.reader(i) for i in range(len(folder.manifest.shards))]
    return np.concatenate([shard.column(folder.manifest.features.name) for shard in shards]) / 255.0


def pca_error(known: np.ndarray, test: np.ndarray) -> float:
    """The error of keeping only the components of largest variance."""
    mean = known.mean(axis=0)
    _, vectors = np.linalg.eigh(np.cov((known - mean).T))
    basis = vectors[:, -CODE:]
    rest = (test - mean) - (test - mean) @ basis @ basis.T
    return float((rest**2).mean())


if __name__ == "__main__":
    main()
