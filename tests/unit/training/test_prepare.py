"""What would train nonsense, or fail on the workers, is refused before anything starts."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from singa_dask import algorithms, layers, updaters
from singa_dask.data import write_shards
from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job import ClusterTopology, Job
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import check_given, prepare, training_data


def job(*net, **fields):
    return Job(name="faulty", train_steps=1, layers=net, updater=updaters.SGD(lr=0.1), **fields)


def data(**conf):
    return layers.RecordInput("data", path="shards", shape=[1, 8, 8], batchsize=4, **conf)


def machine(below="data", between="vis"):
    return (
        data(),
        layers.RBMVis("vis", [below, "hid"], hdim=3),
        layers.RBMHid("hid", [between], hdim=3),
    )


@pytest.mark.parametrize(
    ("net", "says"),
    [
        ([data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss", ["data", "ip"])], "ip"),
        (
            [
                data(),
                layers.InnerProduct("ip", num_output=2),
                layers.ReLU("r"),
                layers.SoftmaxLoss("loss", ["ip", "r"]),
            ],
            "Received: r. Name the layer that reads the data",
        ),
        (
            [data(has_label=False), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")],
            "'data', which has none. Received: has_label: false",
        ),
        (
            [
                *(data(has_label=False), layers.ImagePreprocess("crop"), layers.InnerProduct("ip", num_output=2)),
                layers.SoftmaxLoss("loss", ["ip", "crop"]),
            ],
            "'data', which has none. Received: has_label: false",
        ),
    ],
)
def test_labels_of_what_has_none(net, says):
    with pytest.raises(ConfigError, match=r"neuralnet.layer\[loss\]: reads labels from") as refused:
        prepare(job(*net), with_data=False)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "stop", [layers.CSVOutput("out", "low", path="out.csv"), layers.ImagePreprocess("out", "low", cropsize=4)]
)
def test_parameters_below_what_stops_gradients(stop):
    net = data(), layers.Convolution("low", "data", num_filters=2, kernel=3), stop
    top = layers.InnerProduct("top", "out", num_output=2), layers.SoftmaxLoss("loss", ["top", "data"])
    with pytest.raises(ConfigError, match=r"neuralnet.layer\[out\]: no gradient flows through this layer"):
        prepare(job(*net, *top), with_data=False)


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


def test_a_net_that_reads_no_data():
    net = layers.Dummy("data", input=True, shape=[4, 3]), layers.InnerProduct("ip", num_output=2)
    with pytest.raises(ConfigError, match="no layer reads data in phase kTrain"):
        prepare(job(*net, layers.EuclideanLoss("loss", ["ip", "ip"])), with_data=False)


def test_an_algorithm_that_is_none():
    net = data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")
    with pytest.raises(ConfigError, match=r"train_one_batch.user_alg: must name a subclass of TrainOneBatch"):
        prepare(job(*net, alg=f"{__name__}:data"), with_data=False)


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


def test_settings_of_ones_own_algorithm_reach_the_workers():
    net = data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")
    made = prepare(job(*net, alg=Repeated(times=3).proto), with_data=False).job.train_one_batch
    there = algorithms.algorithm(made)
    assert type(there) is Repeated and there.times == 3
    assert algorithms.algorithm(Counting().proto).count == 0
    assert algorithms.algorithm(Patient(cd_k=3).proto).conf.cd_k == 3
    with pytest.raises(ConfigError, match=r"do not reach the workers. Received: times"):
        Forgetful(3)
    with pytest.raises(ConfigError, match=r"type of its base class, kBP.*TrainOneBatch.*kUserAlg"):
        Unnamed()
    with pytest.raises(ConfigError, match=r"BP has no such setting. Received: k=3"):
        algorithms.BP(k=3)


def test_cd_needs_layers_that_read_each_other():
    prepare(job(*machine(), alg="kCD"), with_data=False)
    with pytest.raises(ConfigError, match="no restricted Boltzmann machine"):
        prepare(job(*machine(between="data"), alg="kCD"), with_data=False)


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
    assert prepared.data.keys() == {"train/data", "test/data"} and prepared.layers.keys() == {"train", "test"}
    assert (prepared.shapes["scores_weight"], prepared.parameters, prepared.layout.total) == ((4, 3), 15, 32)
    assert training_data(prepared.data) == {"train/data": prepared.data["train/data"]}
    assert prepared.drawn == frozenset() or prepared.drawn <= prepared.shapes.keys()
    assert shards(phases=[]).data == {"train/data": prepared.data["train/data"]}
    assert shards(with_data=False, train="shape: 4", test="shape: 4").data == {}


def test_faults_of_codec_and_classes_are_found_before_the_start(shards):
    two = "cluster.nworkers_per_group=2"
    with pytest.raises(ConfigError, match="sparsity"):
        shards("cluster.codec=kTopK", two, "cluster.sparsity=0")
    with pytest.raises(ConfigError, match=r"the data of 'data' have 3 classes\. Received: 2 outputs\. Let 'scores'"):
        shards("neuralnet.layer[2].innerproduct_conf.num_output=2")


@pytest.mark.parametrize(
    ("train", "test", "faults"),
    [
        ('mean_file: "nowhere.h5"', "", ["nowhere.h5"]),
        ("shape: 5", "", ["layer 'data'.store_conf.shape: "]),
        ("shape: 5", "shape: 6", ["layer 'data'.store_conf.shape: ", "layer 'data'.store_conf.shape: "]),
    ],
)
def test_every_fault_of_the_data_names_its_layer(shards, train, test, faults):
    with pytest.raises(ConfigError) as caught:
        shards(train=train, test=test)
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(faults), found
    assert all(fault in text for fault, text in zip(faults, found, strict=True)), found


def test_shapes_of_given_checkpoints_are_checked(shards, tmp_path):
    prepared = shards()
    check_given(prepared)
    values = {name: np.zeros(shape, np.float32) for name, shape in prepared.shapes.items()}
    path = checkpoints.save(checkpoints.Checkpoint(1, 0, "", values), tmp_path / "good.h5")
    prepared.job.checkpoint_path[:] = [str(path)]
    check_given(prepared)
    values["scores_weight"] = np.zeros((3, 4), np.float32)
    checkpoints.save(checkpoints.Checkpoint(1, 0, "", values), path)
    with pytest.raises(CheckpointError, match=r"scores_weight has shape \(3, 4\), in this net \(4, 3\)"):
        check_given(prepared)


def test_samples_taken_as_targets_although_there_are_labels_are_warned_of(shards, caplog):
    def autoencoder(**conf):
        source = layers.RecordInput("data", path="train", batchsize=4, **conf)
        return job(source, layers.InnerProduct("ip", num_output=4), layers.EuclideanLoss("loss"))

    prepare(autoencoder())
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "layer 'loss' takes the samples of 'data' as its target, not their labels"
    ]
    assert "has_label: false" in caplog.text
    assert "--target NAME" in caplog.text
    caplog.clear()
    prepare(autoencoder(has_label=False))
    assert not caplog.records
    classes = layers.InnerProduct("classes", "ip", num_output=3)
    source, ip, loss = (
        layers.RecordInput("data", path="train", batchsize=4),
        layers.InnerProduct("ip", "data", num_output=4),
        layers.EuclideanLoss("loss", ["ip", "data"]),
    )
    prepare(job(source, ip, loss, classes, layers.SoftmaxLoss("kinds", ["classes", "data"])))  # reads the labels
    assert not caplog.records


def test_a_group_of_parameters_that_matches_none_is_refused():
    net = [data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")]
    given = {"layers": net, "train_steps": 1, "name": "groups"}
    groups = [{"match": "*_bias", "wd_scale": 0}]
    prepare(Job(**given, updater=updaters.SGD(lr=0.1, group=groups)), with_data=False)
    groups[0]["match"] = "*.bias"
    words = r"updater.group\[0\].match: matches no parameter. Received: '\*\.bias'. There are: ip_weight, ip_bias."
    with pytest.raises(ConfigError, match=words):
        prepare(Job(**given, updater=updaters.SGD(lr=0.1, group=groups)), with_data=False)


def test_a_rule_for_whole_parameters_refuses_parameters_that_are_split():
    net = [data(), layers.InnerProduct("ip", num_output=2, partition_dim=1), layers.SoftmaxLoss("loss")]
    given = {"layers": net, "train_steps": 1, "name": "split", "cluster": ClusterTopology.allreduce(2)}
    prepare(Job(**given, updater=updaters.AdamW(lr=0.1)), with_data=False)
    with pytest.raises(ConfigError, match=r"updater.type: LAMB needs .* Received: ip_weight, ip_bias. Leave out part"):
        prepare(Job(**given, updater=updaters.LAMB(lr=0.1)), with_data=False)


class Escaping(layers.Layer):
    """Its parameter would lie outside of the parameters of a checkpoint."""

    def setup(self, *src):
        self.declare("/../../w", (2,), 1, 1)
        return src[0]


def test_parameters_of_user_layers_have_names_that_checkpoints_can_have():
    net = [
        data(),
        Escaping("own"),
        layers.InnerProduct("ip", num_output=2),
        layers.SoftmaxLoss("loss", ["ip", "data"]),
    ]
    with pytest.raises(
        ConfigError, match=r"the parameter 'own_/\.\./\.\./w' must not have \. or \.\. between slashes"
    ):
        prepare(job(*net), with_data=False)
