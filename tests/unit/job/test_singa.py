"""The vocabulary of SINGA 0.3's job files: every message, field, default and enum is there, and loads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import DESCRIPTOR, JobProto, LayerType, Phase
from singa_dask.layers.registry import built_in

EXAMPLES = Path(__file__).parents[3] / "examples"

# message: its fields, [default] where SINGA gives one, * where repeated.
MESSAGES = {
    "JobProto": """name neuralnet train_one_batch updater cluster train_steps disp_freq[0] gpu* test_freq[0]
        test_steps[0] validate_freq[0] validate_steps[0] checkpoint_freq[0] checkpoint_path* warmup_steps[0]
        debug[False] reset_param_version[True] num_openblas_threads[1] checkpoint_after[0] disp_after[0] test_after[0]
        validate_after[0] resume[False] step[0] id[-1]""",
    "AlgProto": "alg[0] user_alg cd_conf",
    "CDProto": "cd_k[1]",
    "NetProto": "layer* partition_dim[0] layer_group* unroll_len[1]",
    "LayerGroupProto": "layer*",
    "ClusterProto": """nworker_groups[1] nserver_groups[1] nworkers_per_group[1] nservers_per_group[1]
        nworkers_per_procs[1] nservers_per_procs[1] workspace server_worker_separate[False] sync_freq[1]
        start_port[6723] share_memory[True] poll_time[100]""",
    "LayerProto": """name srclayers* param* exclude* include* type user_type share_src_blobs[False] unroll_len[1]
        unroll_index[0] unroll_conn_type* shift* partition_dim[-1] partition_id[0] num_partitions[1]
        store_conf lmdbdata_conf mnist_conf rgbimage_conf sharddata_conf char_rnn_conf onehot_conf
        activation_conf convolution_conf dropout_conf dummy_conf innerproduct_conf lrn_conf
        pooling_conf rbm_conf relu_conf softmax_conf gru_conf embedding_conf bm_conf softmaxloss_conf
        argsort_conf concate_conf slice_conf split_conf rnn_dummy_conf""",
    "ParamProto": "name[''] init lr_scale[1] wd_scale[1] share_from partition_dim shape*",
    "UpdaterProto": """type[0] user_type learning_rate momentum[0] weight_decay[0] delta[1e-8] clip_low[0] clip_high[0]
        rmsprop_conf adadelta_conf adam_conf adammax_conf""",
    "RMSPropProto": "rho",
    "AdaDeltaProto": "rho[.9]",
    "AdamProto": "beta1[.9] beta2[.999]",
    "AdamMaxProto": "beta1[.9] beta2[.999]",
    "LRGenProto": """type[0] user_type base_lr[0.01] step_conf linear_conf exponential_conf inverse_conf inverset_conf
        fixedstep_conf""",
    "StepProto": "gamma[1] change_freq",
    "LinearProto": "change_freq final_lr",
    "ExponentialProto": "change_freq",
    "InverseProto": "gamma[1] pow[0]",
    "InverseTProto": "final_lr",
    "FixedStepProto": "step* step_lr*",
    "ParamGenProto": "type[0] user_type value[1] mean[0] std[1] low[-1] high[1]",
    "StoreProto": """backend path separator[','] mean_file std_file mean_value std_value batchsize* shape*
        encoded[False] random_skip[0] has_label[True] prefetching[False]""",
    "ConvolutionProto": """num_filters kernel[3] pad[0] stride[1] kernel_x[3] kernel_y[3] pad_x[0] pad_y[0] stride_x[1]
        stride_y[1] workspace_byte_limit[512]""",
    "PoolingProto": """pool[0] kernel[3] pad[0] stride[2] kernel_x[3] kernel_y[3] pad_x[0] pad_y[0] stride_x[2]
        stride_y[2]""",
    "LRNProto": "local_size[5] alpha[1] beta[.75] knorm[1]",
    "DropoutProto": "dropout_ratio[.5]",
    "InnerProductProto": "num_output bias_term[True] transpose[False]",
    "RBMProto": "hdim bias_term[True] gaussian[False]",
    "GRUProto": "dim_hidden bias_term[True]",
    "EmbeddingProto": "vocab_size[0] feature_dim[100]",
    "CharRNNProto": "path vocab_path unroll_len[50] batchsize[1]",
    "OneHotProto": "vocab_size[0]",
    "SoftmaxLossProto": "topk[1] scale[1]",
    "ArgSortProto": "topk[1]",
    "ReLUProto": "negative_slope[0]",
    "SoftmaxProto": "num_softmax_per_instance[1]",
    "RGBImageProto": "scale[1] cropsize[0] mirror[False] meanfile",
    "ActivationProto": "type[0]",
    "SliceProto": "slice_dim[0] num_slices[1]",
    "ConcateProto": "concate_dim[0] num_concates[1]",
    "SplitProto": "num_splits[1]",
    "DummyProto": "input[False] output[False] shape*",
    "RNNDummyProto": "dynamic_srclayer shape* integer[False] low[0] high[0]",
}

ENUMS = {
    "AlgType": "kUserAlg kBP kCD kBPTT",
    "UpdaterType": "kUserUpdater kSGD kAdaGrad kRMSProp kNesterov kAdaDelta kAdam kAdamMax",
    "ChangeMethod": "kUserChange kFixed kStep kLinear kExponential kInverse kInverseT kFixedStep",
    "InitType": """kUserInit kConstant kGaussian kUniform kGaussianSqrtFanIn kUniformSqrtFanIn
        kUniformSqrtFanInOut""",
    "Phase": "kTrain kVal kTest kPositive kNegative kForward kBackward kLoss kDeploy",
    "UnrollConnType": "kUnrollOneToOne kUnrollOneToAll kUnrollFirstToLast kUnrollCustomized",
    "ActivationType": "RELU SIGMOID TANH STANH",
    "PoolMethod": "MAX AVG",
    "LayerType": """kCSVInput kImagePreprocess kRecordInput kCharRNN kRNNLabel kOneHot kLMDBData kLabel kMnist
        kRGBImage kShardData kConvolution kCConvolution kDropout kDummy kInnerProduct kLRN kPooling
        kCPooling kRBMHid kRBMVis kReLU kSTanh kSigmoid kSoftmax kGRU kEmbedding kActivation kBM
        kCudnnConv kCudnnPool kCudnnLRN kCudnnSoftmax kCudnnActivation kCudnnBM kEuclideanLoss
        kSoftmaxLoss kCudnnSoftmaxLoss kAccuracy kArgSort kCSVOutput kRecordOutput kCharRNNOutput
        kBridgeDst kBridgeSrc kConcate kSlice kSplit kRNNDummy kUserLayer""",
}


def enums():
    found = dict(DESCRIPTOR.enum_types_by_name)
    for message in DESCRIPTOR.message_types_by_name.values():
        found.update(message.enum_types_by_name)
    return found


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_have_singas_fields_and_defaults(name):
    fields = DESCRIPTOR.message_types_by_name[name].fields_by_name
    for word in MESSAGES[name].split():
        field, default, star = re.fullmatch(r"(\w+)(?:\[(.*)\])?(\*)?", word).groups()
        assert field in fields
        assert bool(star) == fields[field].is_repeated
        if default is not None:
            assert fields[field].default_value == pytest.approx(eval(default)), field


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_singas_values(name):
    assert set(ENUMS[name].split()) <= set(enums()[name].values_by_name)


def _texts(message, seen=()):
    """A text for every field of a message, on its own: field and value, the values of an enum one by one."""
    for field in message.fields:
        if field.message_type is not None:
            if field.message_type.name in seen:
                continue
            for inner in _texts(field.message_type, (*seen, message.name)) or ():
                yield f"{field.name} {{ {_required(field.message_type, inner)} }}"
        elif field.enum_type is not None:
            yield from (f"{field.name}: {value.name}" for value in field.enum_type.values)
        else:
            kinds = {field.CPPTYPE_STRING: '"x"', field.CPPTYPE_BOOL: "true", field.CPPTYPE_FLOAT: "0.5"}
            yield f"{field.name}: {kinds.get(field.cpp_type, '1')}"


def _required(message, inner):
    """What a message must have besides the text that it has."""
    rest = [f.name for f in message.fields if f.is_required and not inner.startswith(f"{f.name}:")]
    kinds = {"name": '"x"'}
    return " ".join([*(f"{name}: {kinds.get(name, '1')}" for name in rest), inner])


EVERY = list(_texts(JobProto.DESCRIPTOR))


def test_every_field_and_every_value_of_an_enum_loads():
    assert len(EVERY) > 500
    for text in EVERY:
        job = Job.from_text(text + "\n")
        assert job.proto == text_format.Parse(text, JobProto()), text
        assert job.proto.ListFields(), text
        assert Job.from_text(job.to_text()) == job, text


def test_what_is_not_supported_is_said_before_step_0():
    """Only deprecated types of layers have no class; each is refused with the way out (test_checks)."""
    deprecated = {"kLMDBData", "kShardData", "kMnist", "kRGBImage", "kLabel"}
    assert set(LayerType.keys()) - set(built_in()) - deprecated == {"kUserLayer"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.conf")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_are_sound(path):
    if path.parent.name == "clusters":
        Job.from_file(EXAMPLES / "digits" / "job.conf", cluster=path).check()
    else:
        Job.from_file(path).check()


def test_alexnet_has_the_published_shapes_and_size():
    from singa_dask.net import Net
    from singa_dask.ops import Ops

    job = Job.from_file(EXAMPLES / "alexnet" / "job.conf")
    for layer in job.proto.neuralnet.layer:
        layer.rgbimage_conf.ClearField("meanfile")  # made with the shards
    net = Net(job.proto.neuralnet, Phase.kTrain, Ops())
    shapes = {name: net.shapes[name] for name in ("image", "conv1", "pool2", "pool5", "ip8")}
    assert shapes == {
        "image": (227, 227, 3),
        "conv1": (55, 55, 96),
        "pool2": (13, 13, 256),
        "pool5": (6, 6, 256),
        "ip8": (1000,),
    }
    assert sum(param.size for param in net.params) == 62_378_344  # one tower, so no groups in conv2, conv4 and conv5


def test_the_page_for_singas_users_shows_layers_that_are_refused_and_accepted() -> None:
    page = (EXAMPLES.parent / "docs" / "coming-from-singa.md").read_text()
    (block,) = re.findall(r"```\n(# SINGA\n.*?)```", page, re.DOTALL)
    before, after = (f"neuralnet {{\n{text}\n}}" for text in block.split("# singa_dask", 1))
    after = after.replace("neuralnet {\n", "neuralnet {\n#")
    with pytest.raises(ConfigError, match=r"layer\[scale\]\.\[singa\.scale_conf\]: is an extension.*user_conf"):
        Job.from_text(before)
    (layer,) = Job.from_text(after).proto.neuralnet.layer
    assert (layer.user_type, layer.user_conf) == ("my_layers:Scale", '{"factor": 2}')


# The schema


ROOT = Path(__file__).parents[3]


def test_generated_code_is_that_of_the_schema(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the compiler of job.proto is a development tool")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        ".",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, "singa_dask/job/job.proto"], cwd=ROOT, check=True, timeout=50)
    for name in ("job_pb2.py", "job_pb2.pyi"):
        written = (tmp_path / "singa_dask" / "job" / name).read_text()
        assert written == (ROOT / "singa_dask" / "job" / name).read_text(), "run `make proto`"


def test_importing_the_job_needs_no_numpy_dask_mpi_or_gpu() -> None:
    heavy = ("numpy", "dask", "mpi4py", "cupy", "h5py")
    code = f"import sys, singa_dask.job; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=50
    )
    assert done.stdout.strip() == "[]"
