"""Apache SINGA's RNNLM: the recurrent neural network language model of Mikolov et al. (2010, 2011) on Shakespeare.

    python examples/rnnlm/run.py                                                         # in the repository's root
    python examples/rnnlm/run.py --cluster examples/clusters/allreduce.conf --full

Writes word shards of a text, trains, and prints the perplexity per word of the validation text, exp(loss), next to
that of the unigram model. With --full, also that of the same net with a softmax over the whole vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from layers import class_starts

from singa_dask import Job, Result, train
from singa_dask.data import Manifest, ShardFolder, shard_files
from singa_dask.data.catalogue import load_recipe
from singa_dask.data.fetch import raw_files
from singa_dask.job.job_pb2 import JobProto
from singa_dask.layers import InnerProduct, SoftmaxLoss

HERE = Path(__file__).parent
FOLDER = Path("runs/rnnlm")
WORDS, CLASSES = 3720, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--text", type=Path, help="a text of at least 3,720 different words; default: tinyshakespeare")
    parser.add_argument("--full", action="store_true", help="also train with a softmax over the whole vocabulary")
    parser.add_argument("--cluster", help="file with a cluster block; default: one worker")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field of every job"
    )
    args = parser.parse_args()

    text = args.text or raw_files(load_recipe("tinyshakespeare"))["input.txt"]
    shard_files("text", FOLDER / "shards", source=text, unit="word", vocab_size=WORDS, validation=0.1, overwrite=True)
    known, held_out = (words(FOLDER / "shards" / split) for split in ("train", "validation"))
    counts = np.bincount(known, minlength=WORDS)

    classes = json.dumps({"words": WORDS, "starts": class_starts(counts, CLASSES)})
    overrides = [f"neuralnet.layer[loss].user_conf={classes}", *args.set]
    job = Job.from_file(HERE / "job.conf", overrides, cluster=args.cluster)
    found = {
        "unigram": unigram_perplexity(counts, held_out),
        f"RNNLM, {CLASSES} classes": perplexity(train(job, workspace=FOLDER / "classes")),
    }
    if args.full:
        found["RNNLM, full softmax"] = perplexity(train(with_full_softmax(job), workspace=FOLDER / "full"))
    print(f"\n{'perplexity per word':32}")
    for name, value in found.items():
        print(f"{name:32}{value:.1f}")


def with_full_softmax(job: Job) -> Job:
    """The same job with P(w | h) = softmax(W h)[w] over all words."""
    proto = JobProto()
    proto.CopyFrom(job.proto)
    net = proto.neuralnet
    (old,) = [layer for layer in net.layer if layer.name == "loss"]
    scores = InnerProduct("scores", "hidden", num_output=WORDS, bias_term=False, param=[old.param[1]])
    net.layer.remove(old)
    net.layer.extend([scores.proto, SoftmaxLoss("loss", [scores, "label"]).proto])
    return Job.from_proto(proto)


def perplexity(result: Result) -> float:
    return math.exp(result.summary["validate"]["loss"])


def words(folder: Path) -> np.ndarray:
    """The word numbers of a folder of shards, in the order of the text: (N,)."""
    shards = ShardFolder(Manifest.load(folder))
    name = shards.manifest.features.name
    readers = [shards.reader(i) for i in range(len(shards.manifest.shards))]
    return np.concatenate([reader.column(name).reshape(-1) for reader in readers]).astype("int64")


def unigram_perplexity(counts: np.ndarray, text: np.ndarray) -> float:
    """exp of the mean of -log P(w), P(w) = (count + 1) / (N + V)."""
    probability = (counts + 1) / (counts.sum() + len(counts))
    return float(np.exp(-np.log(probability[text]).mean()))


if __name__ == "__main__":
    main()
