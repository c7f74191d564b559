"""What would train nonsense, or fail on the workers, is refused before anything starts."""

import h5py
import numpy as np
import pytest
from support.hybrid import HYBRID
from support.shards import write_shards

from singa_dask import algorithms, layers, updaters
from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Job
from singa_dask.training.prepare import prepare, training_data


def job(*net, **fields):
    return Job(name="faulty", train_steps=1, layers=net, **{"updater": updaters.SGD(lr=0.1), **fields})


def data(**conf):
    return layers.RecordInput("data", path="shards", shape=[1, 8, 8], batchsize=4, **conf)


def machine(below="data", between="vis"):
    return (
        data(),
        layers.RBMVis("vis", [below, "hid"], hdim=3),
        layers.RBMHid("hid", [between], hdim=3),
    )


class Repeated(algorithms.BP):
    """Of a user's own."""

    type = "kUserAlg"

    def prepare(self):
        self.times = self.conf.get("times", 1)


class Forgetful(algorithms.TrainOneBatch):
    def __init__(self, times=1):
        super().__init__()
        self.times = times

    def train_one_batch(self, net, feed, step, on_gradient=None):
        return {}


class Counting(algorithms.BP):
    type = "kUserAlg"

    def __init__(self):
        super().__init__()
        self.count = 0


class Patient(algorithms.CD):
    type = "kUserAlg"


class Unnamed(algorithms.BP):
    pass


class Escaping(layers.Layer):
    """Its parameter would lie outside of the parameters of a checkpoint."""

    def setup(self, *src):
        self.declare("/../../w", (2,), 1, 1)
        return src[0]


def test_settings_of_ones_own_algorithm_reach_the_workers():
    net = data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")
    made = prepare(job(*net, alg=Repeated(times=3).proto), with_data=False).job.train_one_batch
    there = algorithms.algorithm(made)
    assert type(there) is Repeated and there.times == 3
    assert algorithms.algorithm(Counting().proto).count == 0
    assert algorithms.algorithm(Patient(cd_k=3).proto).conf.cd_k == 3


@pytest.mark.parametrize(
    ("algorithm", "settings", "says"),
    [
        (Forgetful, {"times": 3}, r"do not reach the workers. Received: times"),
        (Unnamed, {}, r"type of its base class, kBP.*TrainOneBatch.*kUserAlg"),
        (algorithms.BP, {"k": 3}, r"BP has no such setting. Received: k=3"),
    ],
)
def test_settings_that_would_not_reach_the_workers_are_refused(algorithm, settings, says):
    with pytest.raises(ConfigError, match=says):
        algorithm(**settings)


IP = layers.InnerProduct("ip", num_output=2)
SPLIT = layers.InnerProduct("ip", num_output=2, partition_dim=1)
LOSS = layers.SoftmaxLoss("loss", ["ip", "data"])
CROP = layers.ImagePreprocess("crop"), IP
LOW = data(), layers.Convolution("low", "data", num_filters=2, kernel=3)
TOP = layers.InnerProduct("top", "out", num_output=2), layers.SoftmaxLoss("loss", ["top", "data"])
TWO = {"cluster": ClusterTopology.allreduce(2)}
NO_LABELS = r"neuralnet.layer\[loss\]: reads labels from.*'data', which has none. Received: has_label: false"
NO_GRADIENT = r"neuralnet.layer\[out\]: no gradient flows through this layer"


def grouped(match):
    return {"updater": updaters.SGD(lr=0.1, group=[{"match": match, "wd_scale": 0}])}


@pytest.mark.parametrize(
    ("net", "fields", "says"),
    [
        ([data(), IP, layers.SoftmaxLoss("loss", ["data", "ip"])], {}, r"\[loss\]: reads labels from.* ip"),
        (
            [data(), IP, layers.ReLU("r"), layers.SoftmaxLoss("loss", ["ip", "r"])],
            {},
            r"\[loss\]: reads labels from.*Received: r. Name the layer that reads the data",
        ),
        ([data(has_label=False), IP, layers.SoftmaxLoss("loss")], {}, NO_LABELS),
        ([data(has_label=False), *CROP, layers.SoftmaxLoss("loss", ["ip", "crop"])], {}, NO_LABELS),
        ([*LOW, layers.CSVOutput("out", "low", path="out.csv"), *TOP], {}, NO_GRADIENT),
        ([*LOW, layers.ImagePreprocess("out", "low", cropsize=4), *TOP], {}, NO_GRADIENT),
        (
            [layers.Dummy("data", input=True, shape=[4, 3]), IP, layers.EuclideanLoss("loss", ["ip", "ip"])],
            {},
            "no layer reads data in phase kTrain",
        ),
        (
            [data(), IP, LOSS],
            {"alg": f"{__name__}:data"},
            r"train_one_batch.user_alg: must name a subclass of TrainOneBatch",
        ),
        (machine(between="data"), {"alg": "kCD"}, "no restricted Boltzmann machine"),
        (
            [data(), IP, LOSS],
            grouped("*.bias"),
            r"updater.group\[0\].match: matches no parameter. Received: '\*\.bias'. There are: ip_weight, ip_bias.",
        ),
        (
            [data(), SPLIT, LOSS],
            {**TWO, "updater": updaters.LAMB(lr=0.1)},
            r"updater.type: LAMB needs .* Received: ip_weight, ip_bias. Leave out part",
        ),
        (
            [data(), Escaping("own"), IP, LOSS],
            {},
            r"the parameter 'own_/\.\./\.\./w' must not have \. or \.\. between slashes",
        ),
    ],
)
def test_what_would_train_nonsense_is_refused(net, fields, says):
    with pytest.raises(ConfigError, match=says):
        prepare(job(*net, **fields), with_data=False)


@pytest.mark.parametrize(
    ("net", "fields"),
    [
        (machine(), {"alg": "kCD"}),
        ([data(), IP, LOSS], grouped("*_bias")),
        ([data(), SPLIT, LOSS], {**TWO, "updater": updaters.AdamW(lr=0.1)}),
    ],
    ids=["machine", "group-of-parameters", "split-parameters"],
)
def test_what_resembles_it_is_not(net, fields):
    prepare(job(*net, **fields), with_data=False)


def test_without_data_no_data_file_is_opened(tmp_path):
    """Files that are there, and cannot be read as what the job takes them for."""
    garbage = tmp_path / "mean.bin"
    garbage.write_bytes(b"no HDF5")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "manifest.json").write_text("no JSON")
    records = layers.RecordInput(
        *("data",), path=tmp_path / "shards", shape=[1, 8, 8], batchsize=4, mean_file=garbage, std_file=garbage
    )
    image = layers.ImagePreprocess("image", meanfile=garbage)
    net = records, image, layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss", ["ip", "data"])
    assert prepare(job(*net), with_data=False).parameters == 2 * 64 + 2
    with pytest.raises(ConfigError, match=r"manifest.json: is not JSON"):
        prepare(job(*net))


def test_without_data_no_vocabulary_is_opened(tmp_path):
    (tmp_path / "vocab.txt").mkdir()
    text = f"""
        name: "text" train_steps: 1 train_one_batch {{ alg: kBPTT }}
        updater {{ type: kSGD learning_rate {{ type: kFixed }} }}
        neuralnet {{
          unroll_len: 2
          layer {{ name: "data" type: kCharRNN
            char_rnn_conf {{ path: "{tmp_path}" vocab_path: "{tmp_path}/vocab.txt" unroll_len: 2 batchsize: 2 }} }}
          layer {{ name: "label" type: kRNNLabel srclayers: "data" }}
          layer {{ name: "onehot" type: kOneHot srclayers: "data" onehot_conf {{ vocab_size: 5 }} }}
          layer {{ name: "ip" type: kInnerProduct srclayers: "onehot" innerproduct_conf {{ num_output: 5 }} }}
          layer {{ name: "loss" type: kSoftmaxLoss srclayers: ["ip", "label"] }}
        }}"""
    assert prepare(Job.from_text(text), with_data=False).parameters == 5 * 5 + 5


DATA = """
name: "points" train_steps: 8 test_freq: 4 test_steps: 2
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput exclude: kTest store_conf { path: "train" batchsize: 10 %(train)s } }
  layer { name: "data" type: kRecordInput include: kTest store_conf { path: "test" batchsize: 10 %(test)s } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """A function that prepares DATA in a folder that has its shards."""
    draw = np.random.default_rng(0)
    for split, seed in (("train", 1), ("test", 2)):
        labels = np.random.default_rng(seed).integers(0, 3, 30)
        write_shards(tmp_path / split, draw.normal(size=(30, 4)).astype(np.float32), labels, classes=["a", "b", "c"])
    with h5py.File(tmp_path / "statistics.h5", "w") as file:
        file["mean"], file["std"] = np.full(4, 2.0, np.float32), np.full(4, 3.0, np.float32)
    monkeypatch.chdir(tmp_path)

    def prepared(*overrides, train="", test="", **options):
        return prepare(Job.from_text(DATA % {"train": train, "test": test}, overrides), **options)

    return prepared


def test_paths_of_data_are_absolute_and_shapes_those_of_the_shards(shards, tmp_path):
    prepared = shards(train='mean_file: "statistics.h5" std_file: "statistics.h5"')
    train, test = (layer.store_conf for layer in prepared.job.neuralnet.layer[:2])
    assert (train.path, test.path) == (str(tmp_path / "train"), str(tmp_path / "test"))
    assert list(train.shape) == list(test.shape) == [4] and not test.mean_file
    assert not train.mean_file and not train.std_file
    assert (list(train.mean), list(train.std), list(test.mean)) == ([2.0], [3.0], [])
    assert sorted(prepared.data) == ["test/data", "train/data", "train/data as read"]
    assert prepared.layers.keys() == {"train", "test"}
    assert (prepared.shapes["scores_weight"], prepared.parameters, prepared.layout.total) == ((4, 3), 15, 32)
    assert training_data(prepared.data).keys() == {"train/data", "train/data as read"}
    assert prepared.drawn == frozenset() or prepared.drawn <= prepared.shapes.keys()
    assert shards(phases=[]).data["train/data"] == prepared.data["train/data"]
    assert shards(with_data=False, train="shape: 4", test="shape: 4").data == {}


@pytest.mark.parametrize(
    ("overrides", "train", "test", "faults"),
    [
        (["cluster.codec=kTopK", "cluster.nworkers_per_group=2", "cluster.sparsity=0"], "", "", ["sparsity"]),
        (
            ["neuralnet.layer[2].innerproduct_conf.num_output=2"],
            "",
            "",
            ["the data of 'data' have 3 classes. Received: 2 outputs. Let 'scores'"],
        ),
        ([], 'mean_file: "nowhere.h5"', "", ["nowhere.h5"]),
        ([], "shape: 5", "", ["layer 'data'.store_conf.shape: "]),
        ([], "shape: 5", "shape: 6", ["layer 'data'.store_conf.shape: ", "layer 'data'.store_conf.shape: "]),
    ],
)
def test_every_fault_is_told_before_the_start(shards, overrides, train, test, faults):
    with pytest.raises(ConfigError) as caught:
        shards(*overrides, train=train, test=test)
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(faults), found
    assert all(fault in text for fault, text in zip(faults, found, strict=True)), found


@pytest.mark.parametrize(
    ("conf", "also", "told"),
    [
        ({}, [], ["layer 'loss' takes the samples of 'data' as its target, not their labels"]),
        ({"has_label": False}, [], []),
        ({}, [layers.SoftmaxLoss("kinds", ["classes", "data"])], []),
    ],
    ids=["unread", "none", "read"],
)
def test_samples_taken_as_targets_although_there_are_labels_are_warned_of(shards, caplog, conf, also, told):
    source = layers.RecordInput("data", path="train", batchsize=4, **conf)
    ip, loss = layers.InnerProduct("ip", "data", num_output=4), layers.EuclideanLoss("loss", ["ip", "data"])
    classes = [layers.InnerProduct("classes", "ip", num_output=3)] if also else []
    prepare(job(source, ip, loss, *classes, *also))
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == told
    assert ("has_label: false" in caplog.text and "--target NAME" in caplog.text) == bool(told)


def test_without_its_data_it_is_ready(caplog):
    prepared = prepare(Job.from_text(HYBRID), with_data=False)
    rows = {row.layer: row.partition for row in prepared.layers["train"]}
    assert (rows["conv1"], rows["norm1"], rows["ip1"], rows["loss"]) == ("batch", "batch", "features", "batch")
    assert prepared.topology.nprocesses == 2
    (note,) = caplog.messages
    assert note == "cluster.nworkers_per_procs: 2 is ignored: every worker has a process of its own"


def test_its_data_are_the_only_fault():
    with pytest.raises(ConfigError) as error:
        prepare(Job.from_text(HYBRID))
    (problem,) = error.value.problems
    assert problem.key == "layer 'data'.store_conf.backend"
    assert "singa-dask shard" in problem.hint


def test_without_workers_per_process_nothing_is_noted(caplog):
    prepare(Job.from_text(HYBRID.replace("nworkers_per_procs: 2", "")), with_data=False)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("classes", "outputs", "warned"),
    [(("2", "7"), 10, True), (("2", "7"), 2, False), (("0", "1"), 10, False), (("02", "7"), 10, False)],
)
def test_labels_that_lost_the_numbers_of_outputs_are_told(tmp_path, caplog, classes, outputs, warned):
    write_shards(tmp_path / "out", np.ones((4, 2), np.float32), np.arange(4) % 2, classes=classes)
    net = [layers.RecordInput("data", path=str(tmp_path / "out"), batchsize=2)]
    net += [layers.InnerProduct(num_output=outputs), layers.SoftmaxLoss()]
    prepare(Job(name="t", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1), phases=[])
    assert ("its labels 2, 7 are the classes 0, 1, ..., though the net has" in caplog.text) == warned
