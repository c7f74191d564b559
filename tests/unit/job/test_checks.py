from __future__ import annotations

from collections.abc import Callable

import pytest

from singa_dask.errors import ConfigError, Problem
from singa_dask.job import Job, JobProto, check_job, load_job, locate_problems, read_job
from singa_dask.job.check_fields import RANGES
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.job.layer_types import CONF, DEPRECATED, REQUIRED
from singa_dask.layers.registry import built_in

Problems = Callable[[str], tuple[Problem, ...]]
Broken = Callable[[str, str], str]


def test_good_job_has_no_problems(good: str, problems_of: Problems) -> None:
    assert problems_of(good) == ()


def test_empty_job_lacks_everything() -> None:
    with pytest.raises(ConfigError) as error:
        check_job(JobProto())
    assert [p.key for p in error.value.problems] == ["name", "train_steps", "train_one_batch", "updater", "neuralnet"]
    assert all(p.hint for p in error.value.problems)


# What to replace in the good job, by what; key, line and column of the only problem, and words of its message.
BROKEN = [
    ('name: "digits"', "", "name", None, None, 'is missing. Write name: "my-job".'),
    ("train_steps: 500", "", "train_steps", None, None, "is missing"),
    ("train_steps: 500", "train_steps: 0", "train_steps", 2, 1, "must be at least 1. Received: 0."),
    ("test_freq: 100", "test_freq: -1", "test_freq", 3, 1, "must not be negative. Received: -1."),
    ("test_steps: 5", 'test_steps: 5 keep_best: "accuracy"', "keep_best", 4, 15, "must name a metric of an eval"),
    ("test_steps: 5", 'test_steps: 5 keep_best: "train.loss"', "keep_best", 4, 15, "validate or test, a dot"),
    ("test_steps: 5", 'keep_best: "validate.loss"', "keep_best", 4, 1, "needs the validate evaluation"),
    ("test_steps: 5", 'early_stopping { metric: "validate.x" }', "early_stopping.metric", 4, 18, "validate_freq is 0"),
    ("test_freq: 100", "early_stopping { }", "early_stopping", 3, 1, "validate_freq and test_freq are 0"),
    ("test_steps: 5", "early_stopping { patience: 0 }", "early_stopping.patience", 4, 18, "must be at least 1"),
    ("test_steps: 5", "test_steps: 5 gpu: [0, -1]", "gpu[1]", 4, 24, "must not be negative"),
    ("test_steps: 5", 'test_steps: 5 checkpoint_every: "0s"', "checkpoint_every", 4, 15, "must be a time above 0"),
    ("test_steps: 5", 'test_steps: 5 memory_checkpoint_every: "10"', "memory_checkpoint_every", 4, 15, "its unit"),
    ("test_steps: 5", 'test_steps: 5 orphan_timeout: "5s"', "orphan_timeout", 4, 15, "of at least a minute"),
    # the algorithm
    ("train_one_batch { alg: kBP }", "", "train_one_batch", None, None, "is missing. Write train_one"),
    ("{ alg: kBP }", "{ }", "train_one_batch.alg", 5, 1, "is missing"),
    ("alg: kBP", 'user_alg: "my alg"', "train_one_batch.user_alg", 5, 19, 'must be spelled "module:Name"'),
    ("alg: kBP", 'user_alg: "my:Alg" user_conf: "3"', "train_one_batch.user_conf", 5, 38, "must be a JSON object"),
    ("alg: kBP", 'alg: kBP user_conf: "{}"', "train_one_batch.user_conf", 5, 28, "needs user_alg"),
    ("alg: kBP", "alg: kBP cd_conf { cd_k: 2 }", "train_one_batch.cd_conf", 5, 28, "needs alg: kCD, not kBP"),
    ("alg: kBP", 'alg: kBP user_alg: "my:Alg"', "train_one_batch.alg", 5, 19, "excludes user_alg"),
    # the updater
    ("type: kSGD", "", "updater.type", 6, 1, "is missing. Write type: kSGD, or another"),
    ("type: kSGD", 'user_type: "a.b"', "updater.user_type", 7, 3, "must be spelled"),
    ("type: kSGD", 'user_type: "a:B" user_conf: "[]"', "updater.user_conf", 7, 20, "must be a JSON object"),
    ("type: kSGD", 'user_type: "a:B" user_conf: "{"', "updater.user_conf", 7, 20, "is not JSON"),
    ("type: kSGD", 'type: kSGD user_conf: "{}"', "updater.user_conf", 7, 14, "needs user_type"),
    ("type: kSGD", "type: kRMSProp", "updater.rmsprop_conf", 6, 1, "is missing: kRMSProp needs it"),
    ("type: kSGD", "type: kRMSProp rmsprop_conf { }", "updater.rmsprop_conf.rho", 7, 18, "is missing"),
    ("type: kSGD", "type: kAdam adam_conf { beta2: 1 }", "updater.adam_conf.beta2", 7, 27, "and below 1"),
    ("type: kSGD", "type: kSGD adam_conf { }", "updater.adam_conf", 7, 14, "It belongs to kAdam."),
    ("type: kSGD", "type: kAdaGrad delta: 0", "updater.delta", 7, 18, "must be above 0 for this updater"),
    ("type: kSGD", "type: kSGD clip_low: 5 clip_high: -5", "updater.clip_low", 7, 14, "a range that contains 0"),
    ("type: kSGD", "type: kSGD clip_high: 5", "updater.clip_high", 7, 14, "Received: clip_low=0, clip_high=5."),
    ("type: kSGD", "type: kSGD clip_low: -5", "updater.clip_low", 7, 14, "Write clip_low: -5 clip_high: 5."),
    ("momentum: 0.9", "momentum: 1", "updater.momentum", 8, 3, "must be at least 0 and below 1. Received: 1."),
    ("momentum: 0.9", "momentum: inf", "updater.momentum", 8, 3, "must be a finite number. Received: inf."),
    ("momentum: 0.9", "weight_decay: -0.1", "updater.weight_decay", 8, 3, "must not be negative. Received: -0.1."),
    # the learning rate
    ("learning_rate { type: kFixed base_lr: 0.1 }", "", "updater.learning_rate", 6, 1, "is missing"),
    ("type: kFixed", "", "updater.learning_rate.type", 9, 3, "is missing. Write type: kFixed"),
    ("base_lr: 0.1", "base_lr: -1", "updater.learning_rate.base_lr", 9, 32, "must not be negative"),
    (
        *("type: kFixed", "type: kReduceOnPlateau reduceonplateau_conf { factor: 0 }"),
        *("updater.learning_rate.reduceonplateau_conf.factor", 9, 65, "must be above 0 and below 1. Received: 0."),
    ),
    (
        *("type: kFixed", "type: kReduceOnPlateau reduceonplateau_conf { min_lr: 1 }"),
        *("updater.learning_rate.reduceonplateau_conf.min_lr", 9, 65, "must be at most base_lr, 0.1. Received: 1."),
    ),
    (
        *("type: kFixed", 'type: kReduceOnPlateau reduceonplateau_conf { metric: "validate.loss" }'),
        *("updater.learning_rate.reduceonplateau_conf.metric", 9, 65, "needs the validate evaluation"),
    ),
    ("type: kFixed", "type: kStep", "updater.learning_rate.step_conf", 9, 3, "is missing: kStep needs it"),
    (
        *("type: kFixed", "type: kStep step_conf { gamma: -1 change_freq: 5 }"),
        *("updater.learning_rate.step_conf.gamma", 9, 43, "must not be negative. Received: -1."),
    ),
    (
        *("type: kFixed", "type: kStep step_conf { gamma: 0.5 }"),
        *("updater.learning_rate.step_conf.change_freq", 9, 31, "is missing. Write change_freq: VALUE."),
    ),
    (
        *("type: kFixed", "type: kStep step_conf { change_freq: 0 }"),
        *("updater.learning_rate.step_conf.change_freq", 9, 43, "must be at least 1. Received: 0."),
    ),
    (
        *("type: kFixed", "type: kInverseT inverset_conf { final_lr: 0 }"),
        *("updater.learning_rate.inverset_conf.final_lr", 9, 51, "must be above 0"),
    ),
    (
        *("type: kFixed", "type: kFixedStep fixedstep_conf { step: [0, 9] step_lr: 1 }"),
        *("updater.learning_rate.fixedstep_conf", 9, 36, "as many step_lr as step. Received: 2 step, 1 step_lr."),
    ),
    (
        *("type: kFixed", "type: kFixedStep fixedstep_conf { step: [9, 9] step_lr: [1, 1] }"),
        *("updater.learning_rate.fixedstep_conf.step", 9, 53, "must be in ascending order. Received: [9, 9]."),
    ),
    (
        *("type: kFixed", "type: kFixedStep fixedstep_conf { }"),
        *("updater.learning_rate.fixedstep_conf.step", 9, 36, "is missing"),
    ),
    (
        *("type: kFixed", "type: kFixed warmup_factor: 0.5"),
        *("updater.learning_rate.warmup_factor", 9, 32, "warmup_steps is 0. Received: 0.5. Write warmup_steps: 500."),
    ),
    ("type: kFixed", "type: kCosine", "updater.learning_rate.cosine_conf", 9, 3, "is missing: kCosine needs it"),
    (
        *("type: kFixed", "type: kOneCycle onecycle_conf { change_freq: 9 rise: 0.1 }"),
        *("updater.learning_rate.onecycle_conf.rise", 9, 66, "more than 1 / change_freq. Received: 0.1."),
    ),
    (
        *("type: kFixed", "type: kSequential sequential_conf { }"),
        *("updater.learning_rate.sequential_conf.schedule", 9, 37, "is missing"),
    ),
    (
        *("type: kFixed", "type: kSequential sequential_conf { schedule { type: kFixed } steps: 5 }"),
        *("updater.learning_rate.sequential_conf.steps", 9, 81, "one less than the schedules, of which there are 1"),
    ),
    (
        *("type: kFixed", "type: kSequential sequential_conf { schedule { type: kStep } }"),
        *("updater.learning_rate.sequential_conf.schedule[0].step_conf", 9, 55, "is missing: kStep needs it"),
    ),
    (
        "type: kFixed",
        "type: kSequential sequential_conf { schedule { type: kReduceOnPlateau "
        'reduceonplateau_conf { metric: "validate.loss" } } }',
        "updater.learning_rate.sequential_conf.schedule[0].reduceonplateau_conf.metric",
        *(9, 112, "needs the validate evaluation"),
    ),
    (
        "type: kFixed",
        "type: kSequential sequential_conf { schedule { type: kReduceOnPlateau } steps: 5 "
        "schedule { type: kReduceOnPlateau } }",
        "updater.learning_rate.sequential_conf.schedule[1]",
        *(9, 100, "is the second one: a run counts one kind of reductions"),
    ),
    ("momentum: 0.9", "group { wd_scale: 0 }", "updater.group[0].match", 8, 3, 'is missing. Write match: "*_bias"'),
    # layers by themselves
    ('{ name: "accuracy" type', "{ type", "neuralnet.layer[6].name", 40, 3, "is missing"),
    ("type: kReLU", "", "neuralnet.layer[relu1].type", 32, 3, "is missing. Write type: kReLU, or another"),
    ("type: kReLU", 'user_type: "m"', "neuralnet.layer[relu1].user_type", 32, 25, "must be spelled"),
    ("type: kReLU", 'user_type: "m:f.<locals>.L"', "neuralnet.layer[relu1].user_type", 32, 25, "inside a function"),
    ("type: kReLU", 'type: kReLU user_type: "m:L"', "neuralnet.layer[relu1].type", 32, 25, "excludes user_type"),
    ("type: kReLU", "type: kReLU lrn_conf { }", "neuralnet.layer[relu1].lrn_conf", 32, 37, "It reads relu_conf."),
    ("type: kReLU", "type: kSTanh relu_conf { }", "neuralnet.layer[relu1].relu_conf", 32, 38, "Leave it out."),
    (
        *("type: kReLU", 'user_type: "m:L" relu_conf { }'),
        *("neuralnet.layer[relu1].relu_conf", 32, 42, "Its settings are a JSON object in user_conf."),
    ),
    ("type: kReLU", "type: kReLU param { }", "neuralnet.layer[relu1].param[0]", 32, 37, "kReLU has no parameters"),
    (
        *("num_output: 10 }", "num_output: 10 bias_term: false } param { } param { }"),
        *("neuralnet.layer[ip1].param[1]", 37, 69, "has 1 parameters (weight)"),
    ),
    ("num_filters: 8 ", "", "neuralnet.layer[conv1].convolution_conf.num_filters", 28, 5, "kConvolution needs it"),
    ("pad: 1", "pad: -1", "neuralnet.layer[conv1].convolution_conf.pad", 28, 49, "must not be negative"),
    (
        *("type: kReLU", "type: kPooling pooling_conf { pad: 3 }"),
        *("neuralnet.layer[relu1].pooling_conf.pad", 32, 55, "must be smaller than kernel"),
    ),
    (
        *("type: kReLU", "type: kLRN lrn_conf { local_size: 4 }"),
        *("neuralnet.layer[relu1].lrn_conf.local_size", 32, 47, "must be odd"),
    ),
    (
        *("type: kReLU", "type: kDropout dropout_conf { dropout_ratio: 1 }"),
        *("neuralnet.layer[relu1].dropout_conf.dropout_ratio", 32, 55, "below 1"),
    ),
    ("init { type: kUniformSqrtFanIn }", "init { }", "neuralnet.layer[conv1].param[0].init.type", 29, 24, "missing"),
    (
        *("init { type: kUniformSqrtFanIn }", "init { type: kUniform low: 2 }"),
        *("neuralnet.layer[conv1].param[0].init.low", 29, 46, "must not be above high. Received: low=2, high=1."),
    ),
    ("batchsize: 64 ", "", "neuralnet.layer[0].store_conf.batchsize", 15, 5, "kRecordInput needs it"),
    ("batchsize: 64", "batchsize: 0", "neuralnet.layer[0].store_conf.batchsize[0]", 15, 47, "must be at least 1"),
    ("batchsize: 64", "batchsize: 2", "neuralnet.layer[0].store_conf.batchsize[0]", 15, 47, "shared by the 3 workers"),
    ("batchsize: 64", "batchsize: [64, 32]", "neuralnet.layer[0].store_conf.batchsize", 15, 47, "one entry per"),
    ('path: "dataset:digits/train"', 'path: ""', "neuralnet.layer[0].store_conf.path", 15, 18, "is missing"),
    ("dataset:digits/train", "dataset:digits", "neuralnet.layer[0].store_conf.path", 15, 18, "dataset:NAME/SPLIT"),
    ("shape: [1, 8, 8]", "shape: [1, 0, 8]", "neuralnet.layer[0].store_conf.shape[1]", 15, 72, "must be at least 1"),
    ("shape: [1, 8, 8]", "std_value: 0", "neuralnet.layer[0].store_conf.std_value", 15, 61, "must not be 0"),
    ("batchsize: 64", "batchsize: 64 sequence: -1", "neuralnet.layer[0].store_conf.sequence", 15, 61, "negative"),
    (
        *("batchsize: 64", "batchsize: 64 lookahead: 1"),
        *("neuralnet.layer[0].store_conf.lookahead", 15, 61, "needs sequence"),
    ),
    ("include: kTrain", "include: [kTrain, kUnknown]", "neuralnet.layer[0].include", 16, 5, "is no phase"),
    ("include: kTrain", "include: kTrain exclude: kVal", "neuralnet.layer[0].exclude", 16, 21, "exclude each other"),
    ("type: kReLU", "type: kReLU num_partitions: 2", "neuralnet.layer[relu1].num_partitions", 32, 37, "set by the"),
    (
        *("type: kReLU", "type: kPooling pooling_conf { kernel_x: 5 pad: 3 kernel_y: 4 pad_y: 4 }"),
        *("neuralnet.layer[relu1].pooling_conf.pad_y", 32, 86, "must be smaller than kernel_y"),
    ),
    ("shape: [1, 8, 8]", "shape: [1, 1, 1, 8, 8]", "neuralnet.layer[0].store_conf.shape", 15, 61, "at most 4"),
    # the graph
    ('srclayers: "relu1"', 'srclayers: "relu2"', "neuralnet.layer[ip1].srclayers[0]", 36, 5, "Did you mean relu1?"),
    ('srclayers: "conv1"', "", "neuralnet.layer[relu1].srclayers", 32, 3, "is missing: the layer has no source"),
    ('srclayers: "ip1" srclayers: "data"', 'srclayers: "ip1"', "neuralnet.layer[loss].srclayers", 39, 43, "two"),
    (
        *('srclayers: "conv1"', 'srclayers: "ip1"'),
        *("neuralnet.layer[relu1].srclayers", 32, 37, "form a cycle. Received: relu1 -> ip1 -> relu1."),
    ),
    (
        *('srclayers: "conv1"', 'srclayers: "relu1"'),
        *("neuralnet.layer[relu1].srclayers", 32, 37, "form a cycle. Received: relu1 -> relu1."),
    ),
    (
        *('type: kReLU srclayers: "conv1"', 'type: kReLU srclayers: "conv1" exclude: kTest'),
        *("neuralnet.layer[ip1].srclayers[0]", 36, 5, "does not run in phase kTest, but 'ip1' reads it there"),
    ),
    ('name: "accuracy"', 'name: "loss"', "neuralnet.layer[6].name", 40, 11, "another layer of the same phase"),
    ("type: kSoftmaxLoss", "type: kAccuracy", "neuralnet", 11, 1, "no loss layer runs in phase kTrain"),
    ("alg: kBP", "alg: kCD", "neuralnet", 11, 1, "alg: kCD trains RBMs only"),
    (
        *('type: kReLU srclayers: "conv1"', 'type: kRBMVis srclayers: "conv1" rbm_conf { hdim: 3 }'),
        *("neuralnet", 11, 1, "alg: kBP cannot train the RBM that runs in phase kTrain"),
    ),
    (
        *('param { name: "b1"', 'param { name: "b1" share_from: "ip1_wight"'),
        *("neuralnet.layer[conv1].param[1].share_from", 30, 24, "Did you mean ip1_weight?"),
    ),
    (
        *('param { name: "b1"', 'param { name: "b1" share_from: "b1"'),
        *("neuralnet.layer[conv1].param[1].share_from", 30, 24, "cannot share with itself"),
    ),
    (
        *("num_output: 10 }", 'num_output: 10 } param { share_from: "w1" } param { share_from: "ip1_weight" }'),
        *("neuralnet.layer[ip1].param[1].share_from", 37, 77, "shares another parameter itself. "),
    ),
    # the cluster
    ("nworkers_per_group: 3", "nworkers_per_group: 0", "cluster.nworkers_per_group", 42, 11, "must be at least 1"),
    ("nservers_per_group: 3", "nserver_groups: 3", "cluster.nserver_groups", 42, 33, "must not exceed nworker_groups"),
    ("nservers_per_group: 3", "nworkers_per_procs: 0", "cluster.nworkers_per_procs", 42, 33, "must be at least 1"),
    (
        *("nservers_per_group: 3", "nworkers_per_procs: 6 nworker_groups: 2"),
        *("cluster.share_memory", 42, 1, "is not supported for worker groups in one process"),
    ),
    ("nservers_per_group: 3", "nservers_per_procs: 2", "cluster.nservers_per_procs", 42, 33, "cannot be packed"),
    ("nservers_per_group: 3", "max_staleness: -1", "cluster.max_staleness", 42, 33, "must be at least 0"),
    ("nservers_per_group: 3", "one_behind: true", "cluster.one_behind", 42, 33, "is synchronous"),
    (
        *("nservers_per_group: 3", "nworker_groups: 2 nserver_groups: 2 max_staleness: 1"),
        *("cluster.max_staleness", 42, 69, "bounds the worker groups of one server group"),
    ),
    ("nservers_per_group: 3", "codec: kThreshold", "cluster.codec", 42, 33, "Received: kThreshold. Use kTopK."),
    ("nservers_per_group: 3", "start_port: 70000", "cluster.start_port", 42, 33, "must be from 0 to 65535"),
    ("train_steps: 500", "train_steps: 500 step: 5", "step", 2, 18, "resume: true"),
    # unrolling
    (
        *("type: kReLU", "type: kReLU unroll_len: 9", "neuralnet.layer[relu1].srclayers", 32, 51),
        "has 1 time steps, but 'relu1' (with 9) reads step 1",
    ),
    ("type: kReLU", "type: kReLU shift: 1", "neuralnet.layer[relu1].shift", 32, 37, "step 0 of 1 without a source"),
    ("type: kReLU", "type: kReLU shift: [0, 1]", "neuralnet.layer[relu1].shift", 32, 37, "one entry per source"),
    ("type: kReLU", "type: kReLU shift: -1", "neuralnet.layer[relu1].shift", 32, 37, "must not be negative"),
    ("type: kReLU", "type: kReLU unroll_source: 1", "neuralnet.layer[relu1].unroll_source", 32, 37, "needs 0"),
    ("type: kReLU", "type: kReLU unroll_index: 1", "neuralnet.layer[relu1].unroll_index", 32, 37, "by the unrolling"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "key", "line", "column", "words"), BROKEN, ids=[f"{b[2]}-{b[1]}" for b in BROKEN]
)
def test_one_fault_gives_one_problem_in_its_place(
    old: str,
    new: str,
    key: str,
    line: int | None,
    column: int | None,
    words: str,
    broken: Broken,
    problems_of: Problems,
) -> None:
    problems = problems_of(broken(old, new))
    assert len(problems) == 1, "\n".join(map(str, problems))
    assert words in str(problems[0])
    assert (problems[0].key, problems[0].line, problems[0].column) == (key, line, column)


@pytest.mark.parametrize(
    ("conf", "key", "words"),
    [
        ("char_rnn_conf { batchsize: 3 }", "char_rnn_conf.path", "kCharRNN needs it"),
        ('char_rnn_conf { path: "x" }', "char_rnn_conf.batchsize", "shared by the 3 workers of a group"),
        ('char_rnn_conf { path: "x" batchsize: 2 }', "char_rnn_conf.batchsize", "shared by the 3 workers of a group"),
        ('char_rnn_conf { path: "dataset:x" batchsize: 3 }', "char_rnn_conf.path", "dataset:NAME/SPLIT"),
        (
            'char_rnn_conf { path: "x" batchsize: 3 unroll_len: 0 }',
            "char_rnn_conf.unroll_len",
            "must be from 1 to 100,000",
        ),
        ('char_rnn_conf { path: "x" batchsize: 3 } store_conf { }', "store_conf", "It reads char_rnn_conf"),
    ],
)
def test_text_is_checked_as_other_data_are(conf: str, key: str, words: str, good: str, problems_of: Problems) -> None:
    text = good.replace("nservers_per_group: 3", "")
    for split in ("train", "test"):
        text = text.replace(f'store_conf {{ path: "dataset:digits/{split}" batchsize: 64 shape: [1, 8, 8] }}', conf)
    found = problems_of(text.replace("kRecordInput", "kCharRNN"))
    assert [problem.key for problem in found[:2]] == [f"neuralnet.layer[{i}].{key}" for i in (0, 1)]
    assert words in str(found[0])
    assert all("a text has no labels" in str(problem) or "a row has" in str(problem) for problem in found[2:])


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        ("sequence: 3 lookahead: -1", "lookahead", "must not be negative. Received: -1."),
        ("sequence: 5 shuffle: true", "shuffle", "cannot be shuffled"),
    ],
)
def test_sequences_in_a_net_for_single_records(
    settings: str, key: str, words: str, broken: Broken, problems_of: Problems
) -> None:
    first, labels = problems_of(broken("batchsize: 64", f"batchsize: 64 {settings}"))
    assert (first.key, labels.key) == (f"neuralnet.layer[0].store_conf.{key}", "neuralnet.layer[loss].srclayers")
    assert words in str(first)
    assert "a row has one label per record" in str(labels)


@pytest.mark.parametrize("type_name", sorted(DEPRECATED))
def test_deprecated_inputs_point_to_shards(type_name: str, broken: Broken, problems_of: Problems) -> None:
    (problem,) = problems_of(broken("type: kReLU", f"type: {type_name}"))
    assert problem.key == "neuralnet.layer[relu1].type"
    assert "kRecordInput" in problem.hint
    assert "singa-dask shard" in problem.hint


def test_faults_of_several_kinds_come_in_the_order_of_the_text(good: str, problems_of: Problems) -> None:
    text = (
        good.replace("momentum: 0.9", "momentum: 9").replace('"relu1"\n', '"relu9"\n').replace("train_steps: 500", "")
    )
    text = text.replace("nworkers_per_group: 3", "nworkers_per_group: 3 nworker_groups: 5 nserver_groups: 2")
    keys = ["updater.momentum", "neuralnet.layer[ip1].srclayers[0]", "cluster.nworker_groups", "train_steps"]
    assert [p.key for p in problems_of(text)] == keys


def test_two_circles_are_both_named(broken: Broken, problems_of: Problems) -> None:
    text = broken('srclayers: "conv1"', 'srclayers: "ip1"')
    extra = '  layer { name: "a" type: kReLU srclayers: "c" }\n  layer { name: "b" type: kReLU srclayers: "a" }\n'
    text = text.replace(
        "neuralnet {\n", "neuralnet {\n" + extra + '  layer { name: "c" type: kReLU srclayers: "b" }\n'
    )
    assert [p.received for p in problems_of(text)] == ["a -> b -> c -> a", "relu1 -> ip1 -> relu1"]


def test_a_phase_that_the_job_never_enters_may_be_broken(good: str, problems_of: Problems) -> None:
    """SINGA's jobs exclude their data layers from one phase each, so that both are there for validation."""
    text = good.replace("include: kTrain\n", "exclude: kTest\n").replace("include: kTest\n", "exclude: kTrain\n")
    assert problems_of(text) == ()
    (problem,) = problems_of("validate_freq: 5 validate_steps: 5\n" + text)
    assert problem.message == "another layer of the same phase has this name"


def test_users_layer_may_be_input_and_loss(problems_of: Problems) -> None:
    assert (
        problems_of(
            'name: "x" train_steps: 1 train_one_batch { user_alg: "m:Alg" }\n'
            'updater { user_type: "m:U" user_conf: \'{"a": 1}\' learning_rate { user_type: "m.n:f" } }\n'
            'neuralnet { layer { name: "all" user_type: "m:L" param { share_from: "all_deep" } param { } } }\n'
        )
        == ()
    )


def test_several_batch_sizes_fit_several_groups(broken: Broken, problems_of: Problems) -> None:
    text = broken("batchsize: 64", "batchsize: [64, 32]").replace("nservers_per_group: 3", "nworker_groups: 2")
    assert problems_of(text) == ()


def test_transposed_sharing_by_default_names(broken: Broken, problems_of: Problems) -> None:
    text = broken('param { name: "w1"', 'param { share_from: "ip1_weight"')
    assert problems_of(text) == ()


def test_missing_fields_name_the_file(tmp_path, good: str) -> None:
    path = tmp_path / "job.conf"
    path.write_text(good.replace("train_steps: 500", ""))
    job, positions = read_job(path)
    with pytest.raises(ConfigError) as error:
        check_job(job, positions.find)
    assert str(error.value) == f"{path}: train_steps: is missing. Write train_steps: 1000."


def test_without_positions_problems_have_no_lines(good: str) -> None:
    job = load_job(good)
    job.updater.momentum = 3
    with pytest.raises(ConfigError, match=r"^updater\.momentum: must be"):
        check_job(job)


def test_layers_problems_get_their_lines(good: str) -> None:
    job, positions = read_job(good)
    error = ConfigError(
        [
            Problem("layer 'conv1'", "kernel does not fit"),
            Problem("layer 'ip1'.innerproduct_conf.num_output", "wrong"),
            Problem("layer 'data'", "two have this name"),
            Problem("cluster", "too few workers"),
        ]
    )
    located = locate_problems(error, job, positions.find)
    assert list(map(str, located.problems)) == [
        "24:3: neuralnet.layer[conv1]: kernel does not fit.",
        "37:25: neuralnet.layer[ip1].innerproduct_conf.num_output: wrong.",
        "layer 'data': two have this name.",
        "cluster: too few workers.",
    ]


def test_facts_agree_with_the_layers_classes() -> None:
    assert {name: cls.conf_field for name, cls in built_in().items()} == {name: CONF.get(name) for name in built_in()}
    assert built_in().keys() | DEPRECATED.keys() | {"kUserLayer"} == set(LayerType.keys())


def test_facts_name_what_the_schema_has() -> None:
    """A renamed type, block or field must not leave a check that never fires."""
    layer_types = set(LayerType.keys())
    assert (CONF.keys() | REQUIRED.keys() | DEPRECATED.keys()) <= layer_types
    fields = LayerProto.DESCRIPTOR.fields_by_name
    assert set(CONF.values()) <= set(fields)
    for type_name, needs in REQUIRED.items():
        for field in needs:
            assert field in fields[CONF[type_name]].message_type.fields_by_name
    messages = JobProto.DESCRIPTOR.file.message_types_by_name
    for name in RANGES:
        block, _, field = name.rpartition(".")
        assert any(field in messages[m].fields_by_name for m in ([block] if block else messages)), name


def test_sequences_that_are_read_backwards_are_not_continued() -> None:
    text = """
      name: "text" train_steps: 1 train_one_batch { alg: %s }
      updater { type: kSGD learning_rate { type: kFixed } }
      neuralnet {
        unroll_len: 4
        layer { name: "data" type: kRecordInput store_conf { path: "p" batchsize: 2 shape: 3 sequence: 4 } }
        layer { name: "back" type: kReverse srclayers: "data" }
        layer { name: "ip" type: kInnerProduct srclayers: "back" innerproduct_conf { num_output: 3 } }
        layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
      }"""
    Job.from_text(text % "kBP").check()
    with pytest.raises(ConfigError, match=r"layer\[back\].type: is not for kBPTT.*kReverse.*alg: kBP"):
        Job.from_text(text % "kBPTT").check()
