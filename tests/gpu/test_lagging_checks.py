"""Wrong labels and symbols in training on a GPU make the loss NaN; the host looks at them only then."""

import numpy as np
import pytest
from google.protobuf import text_format

from singa_dask.comm.solo import SoloCommunicator
from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

NET = """
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 3 shape: 1 } }
  layer { name: "read" type: %s srclayers: "data" %s }
  layer { name: "ip" type: kInnerProduct srclayers: "read" innerproduct_conf { num_output: 4 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" %s }
}
"""
READERS = {
    "kOneHot": "onehot_conf { vocab_size: 5 }",
    "kEmbedding": "embedding_conf { vocab_size: 5 feature_dim: 2 }",
}
RIGHT, LABELS = [4, 0, 1], [3, 0, 3]


@pytest.mark.parametrize("factors", ["", "softmaxloss_conf { class_weight: [1, 2, 1, 2] }"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("symbols", "labels", "told"),
    [
        (RIGHT, LABELS, ""),
        (RIGHT, [3, 0, 4], r"labels must lie in \[0, 4\).*0 to 4"),
        (RIGHT, [3, -1, 0], r"labels must lie in \[0, 4\).*-1 to 3"),
        ([4, 5, 0], LABELS, r"symbols must lie in \[0, 5\).*0 to 5"),
        ([4, -1, 0], LABELS, r"symbols must lie in \[0, 5\).*-1 to 4"),
        ([4, 0.5, 0], LABELS, "symbols must be integers"),
    ],
)
def test_wrong_values_are_refused(cupy, reader, factors, symbols, labels, told):
    job = text_format.Parse(NET % (reader, READERS[reader], factors), JobProto())
    replica = Replica.form(job, SoloCommunicator(), get_ops("gpu"), device_comm=SoloCommunicator())
    replica.group_state.initialise()
    feed = {"data": Batch(np.array(symbols, np.float32).reshape(3, 1), np.array(labels))}
    if not told:
        assert np.isfinite(replica.train_step(feed, Step(Phase.kTrain, 0, total_rows=3))["loss"].mean)
        return
    with pytest.raises(DataError, match=told):
        replica.train_step(feed, Step(Phase.kTrain, 0, total_rows=3))
