from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kUnknown: _ClassVar[Phase]
    kTrain: _ClassVar[Phase]
    kVal: _ClassVar[Phase]
    kTest: _ClassVar[Phase]
    kPositive: _ClassVar[Phase]
    kNegative: _ClassVar[Phase]
    kForward: _ClassVar[Phase]
    kBackward: _ClassVar[Phase]
    kLoss: _ClassVar[Phase]
    kDeploy: _ClassVar[Phase]

class UnrollConnType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kUnrollOneToOne: _ClassVar[UnrollConnType]
    kUnrollOneToAll: _ClassVar[UnrollConnType]
    kUnrollFirstToLast: _ClassVar[UnrollConnType]
    kUnrollCustomized: _ClassVar[UnrollConnType]
    kUnrollAllToOne: _ClassVar[UnrollConnType]
    kUnrollOneToEach: _ClassVar[UnrollConnType]

class LayerType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kUserLayer: _ClassVar[LayerType]
    kCSVInput: _ClassVar[LayerType]
    kImagePreprocess: _ClassVar[LayerType]
    kRecordInput: _ClassVar[LayerType]
    kCharRNN: _ClassVar[LayerType]
    kRNNLabel: _ClassVar[LayerType]
    kOneHot: _ClassVar[LayerType]
    kLMDBData: _ClassVar[LayerType]
    kLabel: _ClassVar[LayerType]
    kMnist: _ClassVar[LayerType]
    kRGBImage: _ClassVar[LayerType]
    kShardData: _ClassVar[LayerType]
    kConvolution: _ClassVar[LayerType]
    kCConvolution: _ClassVar[LayerType]
    kDropout: _ClassVar[LayerType]
    kDummy: _ClassVar[LayerType]
    kInnerProduct: _ClassVar[LayerType]
    kLRN: _ClassVar[LayerType]
    kPooling: _ClassVar[LayerType]
    kCPooling: _ClassVar[LayerType]
    kRBMHid: _ClassVar[LayerType]
    kRBMVis: _ClassVar[LayerType]
    kReLU: _ClassVar[LayerType]
    kSTanh: _ClassVar[LayerType]
    kSigmoid: _ClassVar[LayerType]
    kTanh: _ClassVar[LayerType]
    kSoftmax: _ClassVar[LayerType]
    kGRU: _ClassVar[LayerType]
    kEmbedding: _ClassVar[LayerType]
    kActivation: _ClassVar[LayerType]
    kBM: _ClassVar[LayerType]
    kRNN: _ClassVar[LayerType]
    kLSTM: _ClassVar[LayerType]
    kLeakyReLU: _ClassVar[LayerType]
    kELU: _ClassVar[LayerType]
    kGELU: _ClassVar[LayerType]
    kSiLU: _ClassVar[LayerType]
    kGlobalPooling: _ClassVar[LayerType]
    kLayerNorm: _ClassVar[LayerType]
    kGroupNorm: _ClassVar[LayerType]
    kAttention: _ClassVar[LayerType]
    kPositionalEmbedding: _ClassVar[LayerType]
    kTransposedConvolution: _ClassVar[LayerType]
    kUpsampling: _ClassVar[LayerType]
    kClassToken: _ClassVar[LayerType]
    kSelect: _ClassVar[LayerType]
    kCudnnConv: _ClassVar[LayerType]
    kCudnnPool: _ClassVar[LayerType]
    kCudnnLRN: _ClassVar[LayerType]
    kCudnnSoftmax: _ClassVar[LayerType]
    kCudnnActivation: _ClassVar[LayerType]
    kCudnnBM: _ClassVar[LayerType]
    kEuclideanLoss: _ClassVar[LayerType]
    kSoftmaxLoss: _ClassVar[LayerType]
    kMSELoss: _ClassVar[LayerType]
    kMAELoss: _ClassVar[LayerType]
    kHuberLoss: _ClassVar[LayerType]
    kBCELoss: _ClassVar[LayerType]
    kCudnnSoftmaxLoss: _ClassVar[LayerType]
    kAccuracy: _ClassVar[LayerType]
    kArgSort: _ClassVar[LayerType]
    kCSVOutput: _ClassVar[LayerType]
    kRecordOutput: _ClassVar[LayerType]
    kCharRNNOutput: _ClassVar[LayerType]
    kBridgeDst: _ClassVar[LayerType]
    kBridgeSrc: _ClassVar[LayerType]
    kConcate: _ClassVar[LayerType]
    kSlice: _ClassVar[LayerType]
    kSplit: _ClassVar[LayerType]
    kRNNDummy: _ClassVar[LayerType]
    kFrame: _ClassVar[LayerType]
    kLastStep: _ClassVar[LayerType]
    kAllSteps: _ClassVar[LayerType]
    kAdd: _ClassVar[LayerType]
    kMul: _ClassVar[LayerType]
    kMax: _ClassVar[LayerType]
    kReverse: _ClassVar[LayerType]
    kSub: _ClassVar[LayerType]
    kDiv: _ClassVar[LayerType]
    kReshape: _ClassVar[LayerType]
    kTransition: _ClassVar[LayerType]
    kLabelTransition: _ClassVar[LayerType]
kUnknown: Phase
kTrain: Phase
kVal: Phase
kTest: Phase
kPositive: Phase
kNegative: Phase
kForward: Phase
kBackward: Phase
kLoss: Phase
kDeploy: Phase
kUnrollOneToOne: UnrollConnType
kUnrollOneToAll: UnrollConnType
kUnrollFirstToLast: UnrollConnType
kUnrollCustomized: UnrollConnType
kUnrollAllToOne: UnrollConnType
kUnrollOneToEach: UnrollConnType
kUserLayer: LayerType
kCSVInput: LayerType
kImagePreprocess: LayerType
kRecordInput: LayerType
kCharRNN: LayerType
kRNNLabel: LayerType
kOneHot: LayerType
kLMDBData: LayerType
kLabel: LayerType
kMnist: LayerType
kRGBImage: LayerType
kShardData: LayerType
kConvolution: LayerType
kCConvolution: LayerType
kDropout: LayerType
kDummy: LayerType
kInnerProduct: LayerType
kLRN: LayerType
kPooling: LayerType
kCPooling: LayerType
kRBMHid: LayerType
kRBMVis: LayerType
kReLU: LayerType
kSTanh: LayerType
kSigmoid: LayerType
kTanh: LayerType
kSoftmax: LayerType
kGRU: LayerType
kEmbedding: LayerType
kActivation: LayerType
kBM: LayerType
kRNN: LayerType
kLSTM: LayerType
kLeakyReLU: LayerType
kELU: LayerType
kGELU: LayerType
kSiLU: LayerType
kGlobalPooling: LayerType
kLayerNorm: LayerType
kGroupNorm: LayerType
kAttention: LayerType
kPositionalEmbedding: LayerType
kTransposedConvolution: LayerType
kUpsampling: LayerType
kClassToken: LayerType
kSelect: LayerType
kCudnnConv: LayerType
kCudnnPool: LayerType
kCudnnLRN: LayerType
kCudnnSoftmax: LayerType
kCudnnActivation: LayerType
kCudnnBM: LayerType
kEuclideanLoss: LayerType
kSoftmaxLoss: LayerType
kMSELoss: LayerType
kMAELoss: LayerType
kHuberLoss: LayerType
kBCELoss: LayerType
kCudnnSoftmaxLoss: LayerType
kAccuracy: LayerType
kArgSort: LayerType
kCSVOutput: LayerType
kRecordOutput: LayerType
kCharRNNOutput: LayerType
kBridgeDst: LayerType
kBridgeSrc: LayerType
kConcate: LayerType
kSlice: LayerType
kSplit: LayerType
kRNNDummy: LayerType
kFrame: LayerType
kLastStep: LayerType
kAllSteps: LayerType
kAdd: LayerType
kMul: LayerType
kMax: LayerType
kReverse: LayerType
kSub: LayerType
kDiv: LayerType
kReshape: LayerType
kTransition: LayerType
kLabelTransition: LayerType

class JobProto(_message.Message):
    __slots__ = ("name", "seed", "train_steps", "disp_freq", "gpu", "test_freq", "test_steps", "validate_freq", "validate_steps", "checkpoint_freq", "checkpoint_path", "warmup_steps", "debug", "reset_param_version", "num_openblas_threads", "checkpoint_after", "disp_after", "test_after", "validate_after", "metric", "early_stopping", "keep_best", "checkpoint_every", "memory_checkpoint_every", "orphan_timeout", "keep", "compute", "resume", "step", "id", "train_one_batch", "updater", "cluster", "neuralnet")
    class Compute(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        kFloat32: _ClassVar[JobProto.Compute]
        kTF32: _ClassVar[JobProto.Compute]
        kBFloat16: _ClassVar[JobProto.Compute]
    kFloat32: JobProto.Compute
    kTF32: JobProto.Compute
    kBFloat16: JobProto.Compute
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    DISP_FREQ_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    TEST_FREQ_FIELD_NUMBER: _ClassVar[int]
    TEST_STEPS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FREQ_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FREQ_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    DEBUG_FIELD_NUMBER: _ClassVar[int]
    RESET_PARAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_OPENBLAS_THREADS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AFTER_FIELD_NUMBER: _ClassVar[int]
    DISP_AFTER_FIELD_NUMBER: _ClassVar[int]
    TEST_AFTER_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CHECKPOINT_EVERY_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TRAIN_ONE_BATCH_FIELD_NUMBER: _ClassVar[int]
    UPDATER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NEURALNET_FIELD_NUMBER: _ClassVar[int]
    name: str
    seed: int
    train_steps: int
    disp_freq: int
    gpu: _containers.RepeatedScalarFieldContainer[int]
    test_freq: int
    test_steps: int
    validate_freq: int
    validate_steps: int
    checkpoint_freq: int
    checkpoint_path: _containers.RepeatedScalarFieldContainer[str]
    warmup_steps: int
    debug: bool
    reset_param_version: bool
    num_openblas_threads: int
    checkpoint_after: int
    disp_after: int
    test_after: int
    validate_after: int
    metric: _containers.RepeatedScalarFieldContainer[str]
    early_stopping: EarlyStoppingProto
    keep_best: str
    checkpoint_every: str
    memory_checkpoint_every: str
    orphan_timeout: str
    keep: int
    compute: JobProto.Compute
    resume: bool
    step: int
    id: int
    train_one_batch: AlgProto
    updater: UpdaterProto
    cluster: ClusterProto
    neuralnet: NetProto
    def __init__(self, name: _Optional[str] = ..., seed: _Optional[int] = ..., train_steps: _Optional[int] = ..., disp_freq: _Optional[int] = ..., gpu: _Optional[_Iterable[int]] = ..., test_freq: _Optional[int] = ..., test_steps: _Optional[int] = ..., validate_freq: _Optional[int] = ..., validate_steps: _Optional[int] = ..., checkpoint_freq: _Optional[int] = ..., checkpoint_path: _Optional[_Iterable[str]] = ..., warmup_steps: _Optional[int] = ..., debug: bool = ..., reset_param_version: bool = ..., num_openblas_threads: _Optional[int] = ..., checkpoint_after: _Optional[int] = ..., disp_after: _Optional[int] = ..., test_after: _Optional[int] = ..., validate_after: _Optional[int] = ..., metric: _Optional[_Iterable[str]] = ..., early_stopping: _Optional[_Union[EarlyStoppingProto, _Mapping]] = ..., keep_best: _Optional[str] = ..., checkpoint_every: _Optional[str] = ..., memory_checkpoint_every: _Optional[str] = ..., orphan_timeout: _Optional[str] = ..., keep: _Optional[int] = ..., compute: _Optional[_Union[JobProto.Compute, str]] = ..., resume: bool = ..., step: _Optional[int] = ..., id: _Optional[int] = ..., train_one_batch: _Optional[_Union[AlgProto, _Mapping]] = ..., updater: _Optional[_Union[UpdaterProto, _Mapping]] = ..., cluster: _Optional[_Union[ClusterProto, _Mapping]] = ..., neuralnet: _Optional[_Union[NetProto, _Mapping]] = ...) -> None: ...

class AlgProto(_message.Message):
    __slots__ = ("alg", "user_alg", "cd_conf", "user_conf")
    class AlgType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        kUserAlg: _ClassVar[AlgProto.AlgType]
        kBP: _ClassVar[AlgProto.AlgType]
        kCD: _ClassVar[AlgProto.AlgType]
        kBPTT: _ClassVar[AlgProto.AlgType]
    kUserAlg: AlgProto.AlgType
    kBP: AlgProto.AlgType
    kCD: AlgProto.AlgType
    kBPTT: AlgProto.AlgType
    ALG_FIELD_NUMBER: _ClassVar[int]
    USER_ALG_FIELD_NUMBER: _ClassVar[int]
    CD_CONF_FIELD_NUMBER: _ClassVar[int]
    USER_CONF_FIELD_NUMBER: _ClassVar[int]
    alg: AlgProto.AlgType
    user_alg: str
    cd_conf: CDProto
    user_conf: str
    def __init__(self, alg: _Optional[_Union[AlgProto.AlgType, str]] = ..., user_alg: _Optional[str] = ..., cd_conf: _Optional[_Union[CDProto, _Mapping]] = ..., user_conf: _Optional[str] = ...) -> None: ...

class CDProto(_message.Message):
    __slots__ = ("cd_k",)
    CD_K_FIELD_NUMBER: _ClassVar[int]
    cd_k: int
    def __init__(self, cd_k: _Optional[int] = ...) -> None: ...

class NetProto(_message.Message):
    __slots__ = ("layer", "partition_dim", "layer_group", "unroll_len", "partition")
    class Partition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        given: _ClassVar[NetProto.Partition]
        auto: _ClassVar[NetProto.Partition]
    given: NetProto.Partition
    auto: NetProto.Partition
    LAYER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_DIM_FIELD_NUMBER: _ClassVar[int]
    LAYER_GROUP_FIELD_NUMBER: _ClassVar[int]
    UNROLL_LEN_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    layer: _containers.RepeatedCompositeFieldContainer[LayerProto]
    partition_dim: int
    layer_group: _containers.RepeatedCompositeFieldContainer[LayerGroupProto]
    unroll_len: int
    partition: NetProto.Partition
    def __init__(self, layer: _Optional[_Iterable[_Union[LayerProto, _Mapping]]] = ..., partition_dim: _Optional[int] = ..., layer_group: _Optional[_Iterable[_Union[LayerGroupProto, _Mapping]]] = ..., unroll_len: _Optional[int] = ..., partition: _Optional[_Union[NetProto.Partition, str]] = ...) -> None: ...

class LayerGroupProto(_message.Message):
    __slots__ = ("layer",)
    LAYER_FIELD_NUMBER: _ClassVar[int]
    layer: _containers.RepeatedCompositeFieldContainer[LayerProto]
    def __init__(self, layer: _Optional[_Iterable[_Union[LayerProto, _Mapping]]] = ...) -> None: ...

class ClusterProto(_message.Message):
    __slots__ = ("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group", "nworkers_per_procs", "nservers_per_procs", "workspace", "server_worker_separate", "sync_freq", "max_staleness", "one_behind", "bucket_size", "codec", "sparsity", "min_workers", "server_replicas", "start_port", "share_memory", "poll_time")
    class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        kFull: _ClassVar[ClusterProto.Codec]
        kHalf: _ClassVar[ClusterProto.Codec]
        kBFloat16: _ClassVar[ClusterProto.Codec]
        kTopK: _ClassVar[ClusterProto.Codec]
        kThreshold: _ClassVar[ClusterProto.Codec]
        kPartial: _ClassVar[ClusterProto.Codec]
    kFull: ClusterProto.Codec
    kHalf: ClusterProto.Codec
    kBFloat16: ClusterProto.Codec
    kTopK: ClusterProto.Codec
    kThreshold: ClusterProto.Codec
    kPartial: ClusterProto.Codec
    NWORKER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NSERVER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NWORKERS_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NSERVERS_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NWORKERS_PER_PROCS_FIELD_NUMBER: _ClassVar[int]
    NSERVERS_PER_PROCS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    SERVER_WORKER_SEPARATE_FIELD_NUMBER: _ClassVar[int]
    SYNC_FREQ_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    ONE_BEHIND_FIELD_NUMBER: _ClassVar[int]
    BUCKET_SIZE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SPARSITY_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVER_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_PORT_FIELD_NUMBER: _ClassVar[int]
    SHARE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    POLL_TIME_FIELD_NUMBER: _ClassVar[int]
    nworker_groups: int
    nserver_groups: int
    nworkers_per_group: int
    nservers_per_group: int
    nworkers_per_procs: int
    nservers_per_procs: int
    workspace: str
    server_worker_separate: bool
    sync_freq: int
    max_staleness: int
    one_behind: bool
    bucket_size: int
    codec: ClusterProto.Codec
    sparsity: float
    min_workers: int
    server_replicas: int
    start_port: int
    share_memory: bool
    poll_time: int
    def __init__(self, nworker_groups: _Optional[int] = ..., nserver_groups: _Optional[int] = ..., nworkers_per_group: _Optional[int] = ..., nservers_per_group: _Optional[int] = ..., nworkers_per_procs: _Optional[int] = ..., nservers_per_procs: _Optional[int] = ..., workspace: _Optional[str] = ..., server_worker_separate: bool = ..., sync_freq: _Optional[int] = ..., max_staleness: _Optional[int] = ..., one_behind: bool = ..., bucket_size: _Optional[int] = ..., codec: _Optional[_Union[ClusterProto.Codec, str]] = ..., sparsity: _Optional[float] = ..., min_workers: _Optional[int] = ..., server_replicas: _Optional[int] = ..., start_port: _Optional[int] = ..., share_memory: bool = ..., poll_time: _Optional[int] = ...) -> None: ...

class LayerProto(_message.Message):
    __slots__ = ("name", "type", "user_type", "srclayers", "include", "exclude", "share_src_blobs", "unroll_len", "unroll_index", "unroll_conn_type", "shift", "unroll_source", "num_instances", "share_params", "partition_dim", "partition_id", "num_partitions", "store_conf", "lmdbdata_conf", "mnist_conf", "rgbimage_conf", "sharddata_conf", "char_rnn_conf", "onehot_conf", "activation_conf", "convolution_conf", "dropout_conf", "dummy_conf", "innerproduct_conf", "lrn_conf", "pooling_conf", "rbm_conf", "relu_conf", "softmax_conf", "gru_conf", "embedding_conf", "bm_conf", "softmaxloss_conf", "argsort_conf", "concate_conf", "slice_conf", "split_conf", "rnn_dummy_conf", "rnn_conf", "lstm_conf", "leakyrelu_conf", "elu_conf", "globalpooling_conf", "layernorm_conf", "groupnorm_conf", "attention_conf", "positionalembedding_conf", "upsampling_conf", "reshape_conf", "gelu_conf", "select_conf", "mseloss_conf", "maeloss_conf", "huberloss_conf", "bceloss_conf", "user_conf", "param")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_TYPE_FIELD_NUMBER: _ClassVar[int]
    SRCLAYERS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    SHARE_SRC_BLOBS_FIELD_NUMBER: _ClassVar[int]
    UNROLL_LEN_FIELD_NUMBER: _ClassVar[int]
    UNROLL_INDEX_FIELD_NUMBER: _ClassVar[int]
    UNROLL_CONN_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    UNROLL_SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    SHARE_PARAMS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_DIM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    STORE_CONF_FIELD_NUMBER: _ClassVar[int]
    LMDBDATA_CONF_FIELD_NUMBER: _ClassVar[int]
    MNIST_CONF_FIELD_NUMBER: _ClassVar[int]
    RGBIMAGE_CONF_FIELD_NUMBER: _ClassVar[int]
    SHARDDATA_CONF_FIELD_NUMBER: _ClassVar[int]
    CHAR_RNN_CONF_FIELD_NUMBER: _ClassVar[int]
    ONEHOT_CONF_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_CONF_FIELD_NUMBER: _ClassVar[int]
    CONVOLUTION_CONF_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_CONF_FIELD_NUMBER: _ClassVar[int]
    DUMMY_CONF_FIELD_NUMBER: _ClassVar[int]
    INNERPRODUCT_CONF_FIELD_NUMBER: _ClassVar[int]
    LRN_CONF_FIELD_NUMBER: _ClassVar[int]
    POOLING_CONF_FIELD_NUMBER: _ClassVar[int]
    RBM_CONF_FIELD_NUMBER: _ClassVar[int]
    RELU_CONF_FIELD_NUMBER: _ClassVar[int]
    SOFTMAX_CONF_FIELD_NUMBER: _ClassVar[int]
    GRU_CONF_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_CONF_FIELD_NUMBER: _ClassVar[int]
    BM_CONF_FIELD_NUMBER: _ClassVar[int]
    SOFTMAXLOSS_CONF_FIELD_NUMBER: _ClassVar[int]
    ARGSORT_CONF_FIELD_NUMBER: _ClassVar[int]
    CONCATE_CONF_FIELD_NUMBER: _ClassVar[int]
    SLICE_CONF_FIELD_NUMBER: _ClassVar[int]
    SPLIT_CONF_FIELD_NUMBER: _ClassVar[int]
    RNN_DUMMY_CONF_FIELD_NUMBER: _ClassVar[int]
    RNN_CONF_FIELD_NUMBER: _ClassVar[int]
    LSTM_CONF_FIELD_NUMBER: _ClassVar[int]
    LEAKYRELU_CONF_FIELD_NUMBER: _ClassVar[int]
    ELU_CONF_FIELD_NUMBER: _ClassVar[int]
    GLOBALPOOLING_CONF_FIELD_NUMBER: _ClassVar[int]
    LAYERNORM_CONF_FIELD_NUMBER: _ClassVar[int]
    GROUPNORM_CONF_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_CONF_FIELD_NUMBER: _ClassVar[int]
    POSITIONALEMBEDDING_CONF_FIELD_NUMBER: _ClassVar[int]
    UPSAMPLING_CONF_FIELD_NUMBER: _ClassVar[int]
    RESHAPE_CONF_FIELD_NUMBER: _ClassVar[int]
    GELU_CONF_FIELD_NUMBER: _ClassVar[int]
    SELECT_CONF_FIELD_NUMBER: _ClassVar[int]
    MSELOSS_CONF_FIELD_NUMBER: _ClassVar[int]
    MAELOSS_CONF_FIELD_NUMBER: _ClassVar[int]
    HUBERLOSS_CONF_FIELD_NUMBER: _ClassVar[int]
    BCELOSS_CONF_FIELD_NUMBER: _ClassVar[int]
    USER_CONF_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: LayerType
    user_type: str
    srclayers: _containers.RepeatedScalarFieldContainer[str]
    include: _containers.RepeatedScalarFieldContainer[Phase]
    exclude: _containers.RepeatedScalarFieldContainer[Phase]
    share_src_blobs: bool
    unroll_len: int
    unroll_index: int
    unroll_conn_type: _containers.RepeatedScalarFieldContainer[UnrollConnType]
    shift: _containers.RepeatedScalarFieldContainer[int]
    unroll_source: _containers.RepeatedScalarFieldContainer[int]
    num_instances: int
    share_params: str
    partition_dim: int
    partition_id: int
    num_partitions: int
    store_conf: StoreProto
    lmdbdata_conf: DataProto
    mnist_conf: MnistProto
    rgbimage_conf: RGBImageProto
    sharddata_conf: DataProto
    char_rnn_conf: CharRNNProto
    onehot_conf: OneHotProto
    activation_conf: ActivationProto
    convolution_conf: ConvolutionProto
    dropout_conf: DropoutProto
    dummy_conf: DummyProto
    innerproduct_conf: InnerProductProto
    lrn_conf: LRNProto
    pooling_conf: PoolingProto
    rbm_conf: RBMProto
    relu_conf: ReLUProto
    softmax_conf: SoftmaxProto
    gru_conf: GRUProto
    embedding_conf: EmbeddingProto
    bm_conf: BMProto
    softmaxloss_conf: SoftmaxLossProto
    argsort_conf: ArgSortProto
    concate_conf: ConcateProto
    slice_conf: SliceProto
    split_conf: SplitProto
    rnn_dummy_conf: RNNDummyProto
    rnn_conf: RNNProto
    lstm_conf: LSTMProto
    leakyrelu_conf: LeakyReLUProto
    elu_conf: ELUProto
    globalpooling_conf: GlobalPoolingProto
    layernorm_conf: LayerNormProto
    groupnorm_conf: GroupNormProto
    attention_conf: AttentionProto
    positionalembedding_conf: PositionalEmbeddingProto
    upsampling_conf: UpsamplingProto
    reshape_conf: ReshapeProto
    gelu_conf: GELUProto
    select_conf: SelectProto
    mseloss_conf: ErrorLossProto
    maeloss_conf: ErrorLossProto
    huberloss_conf: HuberLossProto
    bceloss_conf: BCELossProto
    user_conf: str
    param: _containers.RepeatedCompositeFieldContainer[ParamProto]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[LayerType, str]] = ..., user_type: _Optional[str] = ..., srclayers: _Optional[_Iterable[str]] = ..., include: _Optional[_Iterable[_Union[Phase, str]]] = ..., exclude: _Optional[_Iterable[_Union[Phase, str]]] = ..., share_src_blobs: bool = ..., unroll_len: _Optional[int] = ..., unroll_index: _Optional[int] = ..., unroll_conn_type: _Optional[_Iterable[_Union[UnrollConnType, str]]] = ..., shift: _Optional[_Iterable[int]] = ..., unroll_source: _Optional[_Iterable[int]] = ..., num_instances: _Optional[int] = ..., share_params: _Optional[str] = ..., partition_dim: _Optional[int] = ..., partition_id: _Optional[int] = ..., num_partitions: _Optional[int] = ..., store_conf: _Optional[_Union[StoreProto, _Mapping]] = ..., lmdbdata_conf: _Optional[_Union[DataProto, _Mapping]] = ..., mnist_conf: _Optional[_Union[MnistProto, _Mapping]] = ..., rgbimage_conf: _Optional[_Union[RGBImageProto, _Mapping]] = ..., sharddata_conf: _Optional[_Union[DataProto, _Mapping]] = ..., char_rnn_conf: _Optional[_Union[CharRNNProto, _Mapping]] = ..., onehot_conf: _Optional[_Union[OneHotProto, _Mapping]] = ..., activation_conf: _Optional[_Union[ActivationProto, _Mapping]] = ..., convolution_conf: _Optional[_Union[ConvolutionProto, _Mapping]] = ..., dropout_conf: _Optional[_Union[DropoutProto, _Mapping]] = ..., dummy_conf: _Optional[_Union[DummyProto, _Mapping]] = ..., innerproduct_conf: _Optional[_Union[InnerProductProto, _Mapping]] = ..., lrn_conf: _Optional[_Union[LRNProto, _Mapping]] = ..., pooling_conf: _Optional[_Union[PoolingProto, _Mapping]] = ..., rbm_conf: _Optional[_Union[RBMProto, _Mapping]] = ..., relu_conf: _Optional[_Union[ReLUProto, _Mapping]] = ..., softmax_conf: _Optional[_Union[SoftmaxProto, _Mapping]] = ..., gru_conf: _Optional[_Union[GRUProto, _Mapping]] = ..., embedding_conf: _Optional[_Union[EmbeddingProto, _Mapping]] = ..., bm_conf: _Optional[_Union[BMProto, _Mapping]] = ..., softmaxloss_conf: _Optional[_Union[SoftmaxLossProto, _Mapping]] = ..., argsort_conf: _Optional[_Union[ArgSortProto, _Mapping]] = ..., concate_conf: _Optional[_Union[ConcateProto, _Mapping]] = ..., slice_conf: _Optional[_Union[SliceProto, _Mapping]] = ..., split_conf: _Optional[_Union[SplitProto, _Mapping]] = ..., rnn_dummy_conf: _Optional[_Union[RNNDummyProto, _Mapping]] = ..., rnn_conf: _Optional[_Union[RNNProto, _Mapping]] = ..., lstm_conf: _Optional[_Union[LSTMProto, _Mapping]] = ..., leakyrelu_conf: _Optional[_Union[LeakyReLUProto, _Mapping]] = ..., elu_conf: _Optional[_Union[ELUProto, _Mapping]] = ..., globalpooling_conf: _Optional[_Union[GlobalPoolingProto, _Mapping]] = ..., layernorm_conf: _Optional[_Union[LayerNormProto, _Mapping]] = ..., groupnorm_conf: _Optional[_Union[GroupNormProto, _Mapping]] = ..., attention_conf: _Optional[_Union[AttentionProto, _Mapping]] = ..., positionalembedding_conf: _Optional[_Union[PositionalEmbeddingProto, _Mapping]] = ..., upsampling_conf: _Optional[_Union[UpsamplingProto, _Mapping]] = ..., reshape_conf: _Optional[_Union[ReshapeProto, _Mapping]] = ..., gelu_conf: _Optional[_Union[GELUProto, _Mapping]] = ..., select_conf: _Optional[_Union[SelectProto, _Mapping]] = ..., mseloss_conf: _Optional[_Union[ErrorLossProto, _Mapping]] = ..., maeloss_conf: _Optional[_Union[ErrorLossProto, _Mapping]] = ..., huberloss_conf: _Optional[_Union[HuberLossProto, _Mapping]] = ..., bceloss_conf: _Optional[_Union[BCELossProto, _Mapping]] = ..., user_conf: _Optional[str] = ..., param: _Optional[_Iterable[_Union[ParamProto, _Mapping]]] = ...) -> None: ...

class ParamProto(_message.Message):
    __slots__ = ("name", "init", "lr_scale", "wd_scale", "share_from", "partition_dim", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INIT_FIELD_NUMBER: _ClassVar[int]
    LR_SCALE_FIELD_NUMBER: _ClassVar[int]
    WD_SCALE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FROM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_DIM_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    init: ParamGenProto
    lr_scale: float
    wd_scale: float
    share_from: str
    partition_dim: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., init: _Optional[_Union[ParamGenProto, _Mapping]] = ..., lr_scale: _Optional[float] = ..., wd_scale: _Optional[float] = ..., share_from: _Optional[str] = ..., partition_dim: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class ParamGenProto(_message.Message):
    __slots__ = ("type", "user_type", "value", "mean", "std", "low", "high")
    class InitType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        kUserInit: _ClassVar[ParamGenProto.InitType]
        kConstant: _ClassVar[ParamGenProto.InitType]
        kGaussian: _ClassVar[ParamGenProto.InitType]
        kUniform: _ClassVar[ParamGenProto.InitType]
        kGaussianSqrtFanIn: _ClassVar[ParamGenProto.InitType]
        kUniformSqrtFanIn: _ClassVar[ParamGenProto.InitType]
        kUniformSqrtFanInOut: _ClassVar[ParamGenProto.InitType]
        kOrthogonal: _ClassVar[ParamGenProto.InitType]
    kUserInit: ParamGenProto.InitType
    kConstant: ParamGenProto.InitType
    kGaussian: ParamGenProto.InitType
    kUniform: ParamGenProto.InitType
    kGaussianSqrtFanIn: ParamGenProto.InitType
    kUniformSqrtFanIn: ParamGenProto.InitType
    kUniformSqrtFanInOut: ParamGenProto.InitType
    kOrthogonal: ParamGenProto.InitType
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    type: ParamGenProto.InitType
    user_type: str
    value: float
    mean: float
    std: float
    low: float
    high: float
    def __init__(self, type: _Optional[_Union[ParamGenProto.InitType, str]] = ..., user_type: _Optional[str] = ..., value: _Optional[float] = ..., mean: _Optional[float] = ..., std: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class UpdaterProto(_message.Message):
    __slots__ = ("type", "user_type", "learning_rate", "momentum", "weight_decay", "delta", "clip_low", "clip_high", "rmsprop_conf", "adadelta_conf", "adam_conf", "adammax_conf", "adamw_conf", "lamb_conf", "group", "clip_norm", "ema_decay", "user_conf")
    class UpdaterType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        kUserUpdater: _ClassVar[UpdaterProto.UpdaterType]
        kSGD: _ClassVar[UpdaterProto.UpdaterType]
        kAdaGrad: _ClassVar[UpdaterProto.UpdaterType]
        kRMSProp: _ClassVar[UpdaterProto.UpdaterType]
        kNesterov: _ClassVar[UpdaterProto.UpdaterType]
        kAdaDelta: _ClassVar[UpdaterProto.UpdaterType]
        kAdam: _ClassVar[UpdaterProto.UpdaterType]
        kAdamMax: _ClassVar[UpdaterProto.UpdaterType]
        kAdamW: _ClassVar[UpdaterProto.UpdaterType]
        kLAMB: _ClassVar[UpdaterProto.UpdaterType]
    kUserUpdater: UpdaterProto.UpdaterType
    kSGD: UpdaterProto.UpdaterType
    kAdaGrad: UpdaterProto.UpdaterType
    kRMSProp: UpdaterProto.UpdaterType
    kNesterov: UpdaterProto.UpdaterType
    kAdaDelta: UpdaterProto.UpdaterType
    kAdam: UpdaterProto.UpdaterType
    kAdamMax: UpdaterProto.UpdaterType
    kAdamW: UpdaterProto.UpdaterType
    kLAMB: UpdaterProto.UpdaterType
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_TYPE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    CLIP_LOW_FIELD_NUMBER: _ClassVar[int]
    CLIP_HIGH_FIELD_NUMBER: _ClassVar[int]
    RMSPROP_CONF_FIELD_NUMBER: _ClassVar[int]
    ADADELTA_CONF_FIELD_NUMBER: _ClassVar[int]
    ADAM_CONF_FIELD_NUMBER: _ClassVar[int]
    ADAMMAX_CONF_FIELD_NUMBER: _ClassVar[int]
    ADAMW_CONF_FIELD_NUMBER: _ClassVar[int]
    LAMB_CONF_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    EMA_DECAY_FIELD_NUMBER: _ClassVar[int]
    USER_CONF_FIELD_NUMBER: _ClassVar[int]
    type: UpdaterProto.UpdaterType
    user_type: str
    learning_rate: LRGenProto
    momentum: float
    weight_decay: float
    delta: float
    clip_low: float
    clip_high: float
    rmsprop_conf: RMSPropProto
    adadelta_conf: AdaDeltaProto
    adam_conf: AdamProto
    adammax_conf: AdamMaxProto
    adamw_conf: AdamWProto
    lamb_conf: LAMBProto
    group: _containers.RepeatedCompositeFieldContainer[ParamGroupProto]
    clip_norm: float
    ema_decay: float
    user_conf: str
    def __init__(self, type: _Optional[_Union[UpdaterProto.UpdaterType, str]] = ..., user_type: _Optional[str] = ..., learning_rate: _Optional[_Union[LRGenProto, _Mapping]] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., delta: _Optional[float] = ..., clip_low: _Optional[float] = ..., clip_high: _Optional[float] = ..., rmsprop_conf: _Optional[_Union[RMSPropProto, _Mapping]] = ..., adadelta_conf: _Optional[_Union[AdaDeltaProto, _Mapping]] = ..., adam_conf: _Optional[_Union[AdamProto, _Mapping]] = ..., adammax_conf: _Optional[_Union[AdamMaxProto, _Mapping]] = ..., adamw_conf: _Optional[_Union[AdamWProto, _Mapping]] = ..., lamb_conf: _Optional[_Union[LAMBProto, _Mapping]] = ..., group: _Optional[_Iterable[_Union[ParamGroupProto, _Mapping]]] = ..., clip_norm: _Optional[float] = ..., ema_decay: _Optional[float] = ..., user_conf: _Optional[str] = ...) -> None: ...

class ParamGroupProto(_message.Message):
    __slots__ = ("match", "lr_scale", "wd_scale")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    LR_SCALE_FIELD_NUMBER: _ClassVar[int]
    WD_SCALE_FIELD_NUMBER: _ClassVar[int]
    match: _containers.RepeatedScalarFieldContainer[str]
    lr_scale: float
    wd_scale: float
    def __init__(self, match: _Optional[_Iterable[str]] = ..., lr_scale: _Optional[float] = ..., wd_scale: _Optional[float] = ...) -> None: ...

class RMSPropProto(_message.Message):
    __slots__ = ("rho",)
    RHO_FIELD_NUMBER: _ClassVar[int]
    rho: float
    def __init__(self, rho: _Optional[float] = ...) -> None: ...

class AdaDeltaProto(_message.Message):
    __slots__ = ("rho",)
    RHO_FIELD_NUMBER: _ClassVar[int]
    rho: float
    def __init__(self, rho: _Optional[float] = ...) -> None: ...

class AdamProto(_message.Message):
    __slots__ = ("beta1", "beta2")
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    beta1: float
    beta2: float
    def __init__(self, beta1: _Optional[float] = ..., beta2: _Optional[float] = ...) -> None: ...

class AdamMaxProto(_message.Message):
    __slots__ = ("beta1", "beta2")
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    beta1: float
    beta2: float
    def __init__(self, beta1: _Optional[float] = ..., beta2: _Optional[float] = ...) -> None: ...

class AdamWProto(_message.Message):
    __slots__ = ("beta1", "beta2")
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    beta1: float
    beta2: float
    def __init__(self, beta1: _Optional[float] = ..., beta2: _Optional[float] = ...) -> None: ...

class LAMBProto(_message.Message):
    __slots__ = ("beta1", "beta2")
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    beta1: float
    beta2: float
    def __init__(self, beta1: _Optional[float] = ..., beta2: _Optional[float] = ...) -> None: ...

class LRGenProto(_message.Message):
    __slots__ = ("type", "user_type", "base_lr", "step_conf", "linear_conf", "exponential_conf", "inverse_conf", "inverset_conf", "fixedstep_conf", "user_conf", "reduceonplateau_conf", "warmup_steps", "warmup_factor", "cosine_conf", "onecycle_conf", "sequential_conf")
    class ChangeMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        kUserChange: _ClassVar[LRGenProto.ChangeMethod]
        kFixed: _ClassVar[LRGenProto.ChangeMethod]
        kStep: _ClassVar[LRGenProto.ChangeMethod]
        kLinear: _ClassVar[LRGenProto.ChangeMethod]
        kExponential: _ClassVar[LRGenProto.ChangeMethod]
        kInverse: _ClassVar[LRGenProto.ChangeMethod]
        kInverseT: _ClassVar[LRGenProto.ChangeMethod]
        kFixedStep: _ClassVar[LRGenProto.ChangeMethod]
        kReduceOnPlateau: _ClassVar[LRGenProto.ChangeMethod]
        kCosine: _ClassVar[LRGenProto.ChangeMethod]
        kOneCycle: _ClassVar[LRGenProto.ChangeMethod]
        kSequential: _ClassVar[LRGenProto.ChangeMethod]
    kUserChange: LRGenProto.ChangeMethod
    kFixed: LRGenProto.ChangeMethod
    kStep: LRGenProto.ChangeMethod
    kLinear: LRGenProto.ChangeMethod
    kExponential: LRGenProto.ChangeMethod
    kInverse: LRGenProto.ChangeMethod
    kInverseT: LRGenProto.ChangeMethod
    kFixedStep: LRGenProto.ChangeMethod
    kReduceOnPlateau: LRGenProto.ChangeMethod
    kCosine: LRGenProto.ChangeMethod
    kOneCycle: LRGenProto.ChangeMethod
    kSequential: LRGenProto.ChangeMethod
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_TYPE_FIELD_NUMBER: _ClassVar[int]
    BASE_LR_FIELD_NUMBER: _ClassVar[int]
    STEP_CONF_FIELD_NUMBER: _ClassVar[int]
    LINEAR_CONF_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_CONF_FIELD_NUMBER: _ClassVar[int]
    INVERSE_CONF_FIELD_NUMBER: _ClassVar[int]
    INVERSET_CONF_FIELD_NUMBER: _ClassVar[int]
    FIXEDSTEP_CONF_FIELD_NUMBER: _ClassVar[int]
    USER_CONF_FIELD_NUMBER: _ClassVar[int]
    REDUCEONPLATEAU_CONF_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FACTOR_FIELD_NUMBER: _ClassVar[int]
    COSINE_CONF_FIELD_NUMBER: _ClassVar[int]
    ONECYCLE_CONF_FIELD_NUMBER: _ClassVar[int]
    SEQUENTIAL_CONF_FIELD_NUMBER: _ClassVar[int]
    type: LRGenProto.ChangeMethod
    user_type: str
    base_lr: float
    step_conf: StepProto
    linear_conf: LinearProto
    exponential_conf: ExponentialProto
    inverse_conf: InverseProto
    inverset_conf: InverseTProto
    fixedstep_conf: FixedStepProto
    user_conf: str
    reduceonplateau_conf: ReduceOnPlateauProto
    warmup_steps: int
    warmup_factor: float
    cosine_conf: CosineProto
    onecycle_conf: OneCycleProto
    sequential_conf: SequentialProto
    def __init__(self, type: _Optional[_Union[LRGenProto.ChangeMethod, str]] = ..., user_type: _Optional[str] = ..., base_lr: _Optional[float] = ..., step_conf: _Optional[_Union[StepProto, _Mapping]] = ..., linear_conf: _Optional[_Union[LinearProto, _Mapping]] = ..., exponential_conf: _Optional[_Union[ExponentialProto, _Mapping]] = ..., inverse_conf: _Optional[_Union[InverseProto, _Mapping]] = ..., inverset_conf: _Optional[_Union[InverseTProto, _Mapping]] = ..., fixedstep_conf: _Optional[_Union[FixedStepProto, _Mapping]] = ..., user_conf: _Optional[str] = ..., reduceonplateau_conf: _Optional[_Union[ReduceOnPlateauProto, _Mapping]] = ..., warmup_steps: _Optional[int] = ..., warmup_factor: _Optional[float] = ..., cosine_conf: _Optional[_Union[CosineProto, _Mapping]] = ..., onecycle_conf: _Optional[_Union[OneCycleProto, _Mapping]] = ..., sequential_conf: _Optional[_Union[SequentialProto, _Mapping]] = ...) -> None: ...

class CosineProto(_message.Message):
    __slots__ = ("change_freq", "final_lr")
    CHANGE_FREQ_FIELD_NUMBER: _ClassVar[int]
    FINAL_LR_FIELD_NUMBER: _ClassVar[int]
    change_freq: int
    final_lr: float
    def __init__(self, change_freq: _Optional[int] = ..., final_lr: _Optional[float] = ...) -> None: ...

class OneCycleProto(_message.Message):
    __slots__ = ("change_freq", "rise", "div_factor", "final_div_factor")
    CHANGE_FREQ_FIELD_NUMBER: _ClassVar[int]
    RISE_FIELD_NUMBER: _ClassVar[int]
    DIV_FACTOR_FIELD_NUMBER: _ClassVar[int]
    FINAL_DIV_FACTOR_FIELD_NUMBER: _ClassVar[int]
    change_freq: int
    rise: float
    div_factor: float
    final_div_factor: float
    def __init__(self, change_freq: _Optional[int] = ..., rise: _Optional[float] = ..., div_factor: _Optional[float] = ..., final_div_factor: _Optional[float] = ...) -> None: ...

class SequentialProto(_message.Message):
    __slots__ = ("schedule", "steps")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    schedule: _containers.RepeatedCompositeFieldContainer[LRGenProto]
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, schedule: _Optional[_Iterable[_Union[LRGenProto, _Mapping]]] = ..., steps: _Optional[_Iterable[int]] = ...) -> None: ...

class ReduceOnPlateauProto(_message.Message):
    __slots__ = ("metric", "factor", "patience", "min_delta", "min_lr")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_DELTA_FIELD_NUMBER: _ClassVar[int]
    MIN_LR_FIELD_NUMBER: _ClassVar[int]
    metric: str
    factor: float
    patience: int
    min_delta: float
    min_lr: float
    def __init__(self, metric: _Optional[str] = ..., factor: _Optional[float] = ..., patience: _Optional[int] = ..., min_delta: _Optional[float] = ..., min_lr: _Optional[float] = ...) -> None: ...

class EarlyStoppingProto(_message.Message):
    __slots__ = ("metric", "patience", "min_delta")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_DELTA_FIELD_NUMBER: _ClassVar[int]
    metric: str
    patience: int
    min_delta: float
    def __init__(self, metric: _Optional[str] = ..., patience: _Optional[int] = ..., min_delta: _Optional[float] = ...) -> None: ...

class StepProto(_message.Message):
    __slots__ = ("gamma", "change_freq")
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FREQ_FIELD_NUMBER: _ClassVar[int]
    gamma: float
    change_freq: int
    def __init__(self, gamma: _Optional[float] = ..., change_freq: _Optional[int] = ...) -> None: ...

class LinearProto(_message.Message):
    __slots__ = ("change_freq", "final_lr")
    CHANGE_FREQ_FIELD_NUMBER: _ClassVar[int]
    FINAL_LR_FIELD_NUMBER: _ClassVar[int]
    change_freq: int
    final_lr: float
    def __init__(self, change_freq: _Optional[int] = ..., final_lr: _Optional[float] = ...) -> None: ...

class ExponentialProto(_message.Message):
    __slots__ = ("change_freq",)
    CHANGE_FREQ_FIELD_NUMBER: _ClassVar[int]
    change_freq: int
    def __init__(self, change_freq: _Optional[int] = ...) -> None: ...

class InverseProto(_message.Message):
    __slots__ = ("gamma", "pow")
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    POW_FIELD_NUMBER: _ClassVar[int]
    gamma: float
    pow: float
    def __init__(self, gamma: _Optional[float] = ..., pow: _Optional[float] = ...) -> None: ...

class InverseTProto(_message.Message):
    __slots__ = ("final_lr",)
    FINAL_LR_FIELD_NUMBER: _ClassVar[int]
    final_lr: float
    def __init__(self, final_lr: _Optional[float] = ...) -> None: ...

class FixedStepProto(_message.Message):
    __slots__ = ("step", "step_lr")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_LR_FIELD_NUMBER: _ClassVar[int]
    step: _containers.RepeatedScalarFieldContainer[int]
    step_lr: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, step: _Optional[_Iterable[int]] = ..., step_lr: _Optional[_Iterable[float]] = ...) -> None: ...

class StoreProto(_message.Message):
    __slots__ = ("backend", "path", "separator", "mean_file", "std_file", "mean_value", "std_value", "batchsize", "shape", "encoded", "random_skip", "has_label", "prefetching", "shuffle", "sequence", "lookahead", "column", "label", "target_shape", "normalise", "mean", "std", "normalise_target", "target_mean", "target_std", "validation_share", "horizon", "stride", "series", "series_start", "record_step", "record_unit", "record_varies", "time_steps", "label_shape", "lengths", "transform")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SEPARATOR_FIELD_NUMBER: _ClassVar[int]
    MEAN_FILE_FIELD_NUMBER: _ClassVar[int]
    STD_FILE_FIELD_NUMBER: _ClassVar[int]
    MEAN_VALUE_FIELD_NUMBER: _ClassVar[int]
    STD_VALUE_FIELD_NUMBER: _ClassVar[int]
    BATCHSIZE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    RANDOM_SKIP_FIELD_NUMBER: _ClassVar[int]
    HAS_LABEL_FIELD_NUMBER: _ClassVar[int]
    PREFETCHING_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TARGET_SHAPE_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_MEAN_FIELD_NUMBER: _ClassVar[int]
    TARGET_STD_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_SHARE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    SERIES_START_FIELD_NUMBER: _ClassVar[int]
    RECORD_STEP_FIELD_NUMBER: _ClassVar[int]
    RECORD_UNIT_FIELD_NUMBER: _ClassVar[int]
    RECORD_VARIES_FIELD_NUMBER: _ClassVar[int]
    TIME_STEPS_FIELD_NUMBER: _ClassVar[int]
    LABEL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    backend: str
    path: str
    separator: str
    mean_file: str
    std_file: str
    mean_value: float
    std_value: float
    batchsize: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    encoded: bool
    random_skip: int
    has_label: bool
    prefetching: bool
    shuffle: bool
    sequence: int
    lookahead: int
    column: str
    label: str
    target_shape: _containers.RepeatedScalarFieldContainer[int]
    normalise: bool
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    normalise_target: bool
    target_mean: _containers.RepeatedScalarFieldContainer[float]
    target_std: _containers.RepeatedScalarFieldContainer[float]
    validation_share: float
    horizon: int
    stride: int
    series: str
    series_start: _containers.RepeatedScalarFieldContainer[int]
    record_step: float
    record_unit: str
    record_varies: bool
    time_steps: int
    label_shape: _containers.RepeatedScalarFieldContainer[int]
    lengths: str
    transform: str
    def __init__(self, backend: _Optional[str] = ..., path: _Optional[str] = ..., separator: _Optional[str] = ..., mean_file: _Optional[str] = ..., std_file: _Optional[str] = ..., mean_value: _Optional[float] = ..., std_value: _Optional[float] = ..., batchsize: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., encoded: bool = ..., random_skip: _Optional[int] = ..., has_label: bool = ..., prefetching: bool = ..., shuffle: bool = ..., sequence: _Optional[int] = ..., lookahead: _Optional[int] = ..., column: _Optional[str] = ..., label: _Optional[str] = ..., target_shape: _Optional[_Iterable[int]] = ..., normalise: bool = ..., mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ..., normalise_target: bool = ..., target_mean: _Optional[_Iterable[float]] = ..., target_std: _Optional[_Iterable[float]] = ..., validation_share: _Optional[float] = ..., horizon: _Optional[int] = ..., stride: _Optional[int] = ..., series: _Optional[str] = ..., series_start: _Optional[_Iterable[int]] = ..., record_step: _Optional[float] = ..., record_unit: _Optional[str] = ..., record_varies: bool = ..., time_steps: _Optional[int] = ..., label_shape: _Optional[_Iterable[int]] = ..., lengths: _Optional[str] = ..., transform: _Optional[str] = ...) -> None: ...

class DataProto(_message.Message):
    __slots__ = ("path", "batchsize", "random_skip")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BATCHSIZE_FIELD_NUMBER: _ClassVar[int]
    RANDOM_SKIP_FIELD_NUMBER: _ClassVar[int]
    path: str
    batchsize: int
    random_skip: int
    def __init__(self, path: _Optional[str] = ..., batchsize: _Optional[int] = ..., random_skip: _Optional[int] = ...) -> None: ...

class MnistProto(_message.Message):
    __slots__ = ("norm_a", "norm_b")
    NORM_A_FIELD_NUMBER: _ClassVar[int]
    NORM_B_FIELD_NUMBER: _ClassVar[int]
    norm_a: float
    norm_b: float
    def __init__(self, norm_a: _Optional[float] = ..., norm_b: _Optional[float] = ...) -> None: ...

class RGBImageProto(_message.Message):
    __slots__ = ("scale", "cropsize", "mirror", "meanfile", "pad")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    CROPSIZE_FIELD_NUMBER: _ClassVar[int]
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    MEANFILE_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    scale: float
    cropsize: int
    mirror: bool
    meanfile: str
    pad: int
    def __init__(self, scale: _Optional[float] = ..., cropsize: _Optional[int] = ..., mirror: bool = ..., meanfile: _Optional[str] = ..., pad: _Optional[int] = ...) -> None: ...

class CharRNNProto(_message.Message):
    __slots__ = ("path", "vocab_path", "unroll_len", "batchsize", "vocabulary")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_PATH_FIELD_NUMBER: _ClassVar[int]
    UNROLL_LEN_FIELD_NUMBER: _ClassVar[int]
    BATCHSIZE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    path: str
    vocab_path: str
    unroll_len: int
    batchsize: int
    vocabulary: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, path: _Optional[str] = ..., vocab_path: _Optional[str] = ..., unroll_len: _Optional[int] = ..., batchsize: _Optional[int] = ..., vocabulary: _Optional[_Iterable[str]] = ...) -> None: ...

class OneHotProto(_message.Message):
    __slots__ = ("vocab_size",)
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    def __init__(self, vocab_size: _Optional[int] = ...) -> None: ...

class ActivationProto(_message.Message):
    __slots__ = ("type",)
    class ActivationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RELU: _ClassVar[ActivationProto.ActivationType]
        SIGMOID: _ClassVar[ActivationProto.ActivationType]
        TANH: _ClassVar[ActivationProto.ActivationType]
        STANH: _ClassVar[ActivationProto.ActivationType]
        LEAKYRELU: _ClassVar[ActivationProto.ActivationType]
        ELU: _ClassVar[ActivationProto.ActivationType]
        GELU: _ClassVar[ActivationProto.ActivationType]
        SILU: _ClassVar[ActivationProto.ActivationType]
    RELU: ActivationProto.ActivationType
    SIGMOID: ActivationProto.ActivationType
    TANH: ActivationProto.ActivationType
    STANH: ActivationProto.ActivationType
    LEAKYRELU: ActivationProto.ActivationType
    ELU: ActivationProto.ActivationType
    GELU: ActivationProto.ActivationType
    SILU: ActivationProto.ActivationType
    TYPE_FIELD_NUMBER: _ClassVar[int]
    type: ActivationProto.ActivationType
    def __init__(self, type: _Optional[_Union[ActivationProto.ActivationType, str]] = ...) -> None: ...

class ConvolutionProto(_message.Message):
    __slots__ = ("num_filters", "kernel", "pad", "stride", "kernel_x", "kernel_y", "pad_x", "pad_y", "stride_x", "stride_y", "bias_term", "workspace_byte_limit", "groups", "dilation", "dilation_x", "dilation_y", "kernel_z", "pad_z", "stride_z", "dilation_z", "output_pad")
    NUM_FILTERS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_X_FIELD_NUMBER: _ClassVar[int]
    KERNEL_Y_FIELD_NUMBER: _ClassVar[int]
    PAD_X_FIELD_NUMBER: _ClassVar[int]
    PAD_Y_FIELD_NUMBER: _ClassVar[int]
    STRIDE_X_FIELD_NUMBER: _ClassVar[int]
    STRIDE_Y_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DILATION_FIELD_NUMBER: _ClassVar[int]
    DILATION_X_FIELD_NUMBER: _ClassVar[int]
    DILATION_Y_FIELD_NUMBER: _ClassVar[int]
    KERNEL_Z_FIELD_NUMBER: _ClassVar[int]
    PAD_Z_FIELD_NUMBER: _ClassVar[int]
    STRIDE_Z_FIELD_NUMBER: _ClassVar[int]
    DILATION_Z_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PAD_FIELD_NUMBER: _ClassVar[int]
    num_filters: int
    kernel: int
    pad: int
    stride: int
    kernel_x: int
    kernel_y: int
    pad_x: int
    pad_y: int
    stride_x: int
    stride_y: int
    bias_term: bool
    workspace_byte_limit: int
    groups: int
    dilation: int
    dilation_x: int
    dilation_y: int
    kernel_z: int
    pad_z: int
    stride_z: int
    dilation_z: int
    output_pad: int
    def __init__(self, num_filters: _Optional[int] = ..., kernel: _Optional[int] = ..., pad: _Optional[int] = ..., stride: _Optional[int] = ..., kernel_x: _Optional[int] = ..., kernel_y: _Optional[int] = ..., pad_x: _Optional[int] = ..., pad_y: _Optional[int] = ..., stride_x: _Optional[int] = ..., stride_y: _Optional[int] = ..., bias_term: bool = ..., workspace_byte_limit: _Optional[int] = ..., groups: _Optional[int] = ..., dilation: _Optional[int] = ..., dilation_x: _Optional[int] = ..., dilation_y: _Optional[int] = ..., kernel_z: _Optional[int] = ..., pad_z: _Optional[int] = ..., stride_z: _Optional[int] = ..., dilation_z: _Optional[int] = ..., output_pad: _Optional[int] = ...) -> None: ...

class ReshapeProto(_message.Message):
    __slots__ = ("shape",)
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ...) -> None: ...

class UpsamplingProto(_message.Message):
    __slots__ = ("factor", "method")
    class Method(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NEAREST: _ClassVar[UpsamplingProto.Method]
        BILINEAR: _ClassVar[UpsamplingProto.Method]
    NEAREST: UpsamplingProto.Method
    BILINEAR: UpsamplingProto.Method
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    factor: int
    method: UpsamplingProto.Method
    def __init__(self, factor: _Optional[int] = ..., method: _Optional[_Union[UpsamplingProto.Method, str]] = ...) -> None: ...

class PoolingProto(_message.Message):
    __slots__ = ("pool", "kernel", "pad", "stride", "kernel_x", "kernel_y", "pad_x", "pad_y", "stride_x", "stride_y", "kernel_z", "pad_z", "stride_z", "ceil_mode")
    class PoolMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MAX: _ClassVar[PoolingProto.PoolMethod]
        AVG: _ClassVar[PoolingProto.PoolMethod]
    MAX: PoolingProto.PoolMethod
    AVG: PoolingProto.PoolMethod
    POOL_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_X_FIELD_NUMBER: _ClassVar[int]
    KERNEL_Y_FIELD_NUMBER: _ClassVar[int]
    PAD_X_FIELD_NUMBER: _ClassVar[int]
    PAD_Y_FIELD_NUMBER: _ClassVar[int]
    STRIDE_X_FIELD_NUMBER: _ClassVar[int]
    STRIDE_Y_FIELD_NUMBER: _ClassVar[int]
    KERNEL_Z_FIELD_NUMBER: _ClassVar[int]
    PAD_Z_FIELD_NUMBER: _ClassVar[int]
    STRIDE_Z_FIELD_NUMBER: _ClassVar[int]
    CEIL_MODE_FIELD_NUMBER: _ClassVar[int]
    pool: PoolingProto.PoolMethod
    kernel: int
    pad: int
    stride: int
    kernel_x: int
    kernel_y: int
    pad_x: int
    pad_y: int
    stride_x: int
    stride_y: int
    kernel_z: int
    pad_z: int
    stride_z: int
    ceil_mode: bool
    def __init__(self, pool: _Optional[_Union[PoolingProto.PoolMethod, str]] = ..., kernel: _Optional[int] = ..., pad: _Optional[int] = ..., stride: _Optional[int] = ..., kernel_x: _Optional[int] = ..., kernel_y: _Optional[int] = ..., pad_x: _Optional[int] = ..., pad_y: _Optional[int] = ..., stride_x: _Optional[int] = ..., stride_y: _Optional[int] = ..., kernel_z: _Optional[int] = ..., pad_z: _Optional[int] = ..., stride_z: _Optional[int] = ..., ceil_mode: bool = ...) -> None: ...

class GlobalPoolingProto(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: PoolingProto.PoolMethod
    def __init__(self, pool: _Optional[_Union[PoolingProto.PoolMethod, str]] = ...) -> None: ...

class LRNProto(_message.Message):
    __slots__ = ("local_size", "alpha", "beta", "knorm")
    LOCAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    KNORM_FIELD_NUMBER: _ClassVar[int]
    local_size: int
    alpha: float
    beta: float
    knorm: float
    def __init__(self, local_size: _Optional[int] = ..., alpha: _Optional[float] = ..., beta: _Optional[float] = ..., knorm: _Optional[float] = ...) -> None: ...

class DropoutProto(_message.Message):
    __slots__ = ("dropout_ratio",)
    DROPOUT_RATIO_FIELD_NUMBER: _ClassVar[int]
    dropout_ratio: float
    def __init__(self, dropout_ratio: _Optional[float] = ...) -> None: ...

class DummyProto(_message.Message):
    __slots__ = ("input", "output", "shape")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    input: bool
    output: bool
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input: bool = ..., output: bool = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class InnerProductProto(_message.Message):
    __slots__ = ("num_output", "bias_term", "transpose", "each_step")
    NUM_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    TRANSPOSE_FIELD_NUMBER: _ClassVar[int]
    EACH_STEP_FIELD_NUMBER: _ClassVar[int]
    num_output: int
    bias_term: bool
    transpose: bool
    each_step: bool
    def __init__(self, num_output: _Optional[int] = ..., bias_term: bool = ..., transpose: bool = ..., each_step: bool = ...) -> None: ...

class RBMProto(_message.Message):
    __slots__ = ("hdim", "bias_term", "gaussian")
    HDIM_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    GAUSSIAN_FIELD_NUMBER: _ClassVar[int]
    hdim: int
    bias_term: bool
    gaussian: bool
    def __init__(self, hdim: _Optional[int] = ..., bias_term: bool = ..., gaussian: bool = ...) -> None: ...

class ReLUProto(_message.Message):
    __slots__ = ("negative_slope", "max_value")
    NEGATIVE_SLOPE_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUE_FIELD_NUMBER: _ClassVar[int]
    negative_slope: float
    max_value: float
    def __init__(self, negative_slope: _Optional[float] = ..., max_value: _Optional[float] = ...) -> None: ...

class LeakyReLUProto(_message.Message):
    __slots__ = ("negative_slope",)
    NEGATIVE_SLOPE_FIELD_NUMBER: _ClassVar[int]
    negative_slope: float
    def __init__(self, negative_slope: _Optional[float] = ...) -> None: ...

class GELUProto(_message.Message):
    __slots__ = ("approximate",)
    class Approximation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[GELUProto.Approximation]
        TANH: _ClassVar[GELUProto.Approximation]
    NONE: GELUProto.Approximation
    TANH: GELUProto.Approximation
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    approximate: GELUProto.Approximation
    def __init__(self, approximate: _Optional[_Union[GELUProto.Approximation, str]] = ...) -> None: ...

class ELUProto(_message.Message):
    __slots__ = ("alpha",)
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    alpha: float
    def __init__(self, alpha: _Optional[float] = ...) -> None: ...

class SoftmaxProto(_message.Message):
    __slots__ = ("num_softmax_per_instance", "each_step")
    NUM_SOFTMAX_PER_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EACH_STEP_FIELD_NUMBER: _ClassVar[int]
    num_softmax_per_instance: int
    each_step: bool
    def __init__(self, num_softmax_per_instance: _Optional[int] = ..., each_step: bool = ...) -> None: ...

class GRUProto(_message.Message):
    __slots__ = ("dim_hidden", "bias_term")
    DIM_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    dim_hidden: int
    bias_term: bool
    def __init__(self, dim_hidden: _Optional[int] = ..., bias_term: bool = ...) -> None: ...

class RNNProto(_message.Message):
    __slots__ = ("dim_hidden", "bias_term")
    DIM_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    dim_hidden: int
    bias_term: bool
    def __init__(self, dim_hidden: _Optional[int] = ..., bias_term: bool = ...) -> None: ...

class LSTMProto(_message.Message):
    __slots__ = ("dim_hidden", "bias_term", "return_cell")
    DIM_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    RETURN_CELL_FIELD_NUMBER: _ClassVar[int]
    dim_hidden: int
    bias_term: bool
    return_cell: bool
    def __init__(self, dim_hidden: _Optional[int] = ..., bias_term: bool = ..., return_cell: bool = ...) -> None: ...

class EmbeddingProto(_message.Message):
    __slots__ = ("vocab_size", "feature_dim", "pool", "padding_idx")
    class Pool(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[EmbeddingProto.Pool]
        SUM: _ClassVar[EmbeddingProto.Pool]
        MEAN: _ClassVar[EmbeddingProto.Pool]
    NONE: EmbeddingProto.Pool
    SUM: EmbeddingProto.Pool
    MEAN: EmbeddingProto.Pool
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_DIM_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PADDING_IDX_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    feature_dim: int
    pool: EmbeddingProto.Pool
    padding_idx: int
    def __init__(self, vocab_size: _Optional[int] = ..., feature_dim: _Optional[int] = ..., pool: _Optional[_Union[EmbeddingProto.Pool, str]] = ..., padding_idx: _Optional[int] = ...) -> None: ...

class AttentionProto(_message.Message):
    __slots__ = ("num_heads", "causal", "bias_term", "num_kv_heads", "rotary", "rotary_base")
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_FIELD_NUMBER: _ClassVar[int]
    BIAS_TERM_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    ROTARY_FIELD_NUMBER: _ClassVar[int]
    ROTARY_BASE_FIELD_NUMBER: _ClassVar[int]
    num_heads: int
    causal: bool
    bias_term: bool
    num_kv_heads: int
    rotary: bool
    rotary_base: float
    def __init__(self, num_heads: _Optional[int] = ..., causal: bool = ..., bias_term: bool = ..., num_kv_heads: _Optional[int] = ..., rotary: bool = ..., rotary_base: _Optional[float] = ...) -> None: ...

class PositionalEmbeddingProto(_message.Message):
    __slots__ = ("kind",)
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LEARNED: _ClassVar[PositionalEmbeddingProto.Kind]
        SINUSOIDAL: _ClassVar[PositionalEmbeddingProto.Kind]
    LEARNED: PositionalEmbeddingProto.Kind
    SINUSOIDAL: PositionalEmbeddingProto.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: PositionalEmbeddingProto.Kind
    def __init__(self, kind: _Optional[_Union[PositionalEmbeddingProto.Kind, str]] = ...) -> None: ...

class SelectProto(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class BMProto(_message.Message):
    __slots__ = ("factor", "epsilon")
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    factor: float
    epsilon: float
    def __init__(self, factor: _Optional[float] = ..., epsilon: _Optional[float] = ...) -> None: ...

class LayerNormProto(_message.Message):
    __slots__ = ("epsilon",)
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    def __init__(self, epsilon: _Optional[float] = ...) -> None: ...

class GroupNormProto(_message.Message):
    __slots__ = ("num_groups", "epsilon")
    NUM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    num_groups: int
    epsilon: float
    def __init__(self, num_groups: _Optional[int] = ..., epsilon: _Optional[float] = ...) -> None: ...

class SoftmaxLossProto(_message.Message):
    __slots__ = ("topk", "scale", "class_weight", "label_smoothing", "ignore_label")
    TOPK_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    CLASS_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LABEL_SMOOTHING_FIELD_NUMBER: _ClassVar[int]
    IGNORE_LABEL_FIELD_NUMBER: _ClassVar[int]
    topk: int
    scale: float
    class_weight: _containers.RepeatedScalarFieldContainer[float]
    label_smoothing: float
    ignore_label: int
    def __init__(self, topk: _Optional[int] = ..., scale: _Optional[float] = ..., class_weight: _Optional[_Iterable[float]] = ..., label_smoothing: _Optional[float] = ..., ignore_label: _Optional[int] = ...) -> None: ...

class ErrorLossProto(_message.Message):
    __slots__ = ("reduction", "scale")
    class Reduction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MEAN: _ClassVar[ErrorLossProto.Reduction]
        SUM: _ClassVar[ErrorLossProto.Reduction]
    MEAN: ErrorLossProto.Reduction
    SUM: ErrorLossProto.Reduction
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    reduction: ErrorLossProto.Reduction
    scale: float
    def __init__(self, reduction: _Optional[_Union[ErrorLossProto.Reduction, str]] = ..., scale: _Optional[float] = ...) -> None: ...

class HuberLossProto(_message.Message):
    __slots__ = ("reduction", "delta", "scale")
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    reduction: ErrorLossProto.Reduction
    delta: float
    scale: float
    def __init__(self, reduction: _Optional[_Union[ErrorLossProto.Reduction, str]] = ..., delta: _Optional[float] = ..., scale: _Optional[float] = ...) -> None: ...

class BCELossProto(_message.Message):
    __slots__ = ("reduction", "pos_weight", "label_smoothing", "scale")
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    POS_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LABEL_SMOOTHING_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    reduction: ErrorLossProto.Reduction
    pos_weight: _containers.RepeatedScalarFieldContainer[float]
    label_smoothing: float
    scale: float
    def __init__(self, reduction: _Optional[_Union[ErrorLossProto.Reduction, str]] = ..., pos_weight: _Optional[_Iterable[float]] = ..., label_smoothing: _Optional[float] = ..., scale: _Optional[float] = ...) -> None: ...

class ArgSortProto(_message.Message):
    __slots__ = ("topk",)
    TOPK_FIELD_NUMBER: _ClassVar[int]
    topk: int
    def __init__(self, topk: _Optional[int] = ...) -> None: ...

class ConcateProto(_message.Message):
    __slots__ = ("concate_dim", "num_concates")
    CONCATE_DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_CONCATES_FIELD_NUMBER: _ClassVar[int]
    concate_dim: int
    num_concates: int
    def __init__(self, concate_dim: _Optional[int] = ..., num_concates: _Optional[int] = ...) -> None: ...

class SliceProto(_message.Message):
    __slots__ = ("slice_dim", "num_slices", "sizes", "piece")
    SLICE_DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_SLICES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    slice_dim: int
    num_slices: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    piece: int
    def __init__(self, slice_dim: _Optional[int] = ..., num_slices: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., piece: _Optional[int] = ...) -> None: ...

class SplitProto(_message.Message):
    __slots__ = ("num_splits",)
    NUM_SPLITS_FIELD_NUMBER: _ClassVar[int]
    num_splits: int
    def __init__(self, num_splits: _Optional[int] = ...) -> None: ...

class RNNDummyProto(_message.Message):
    __slots__ = ("dynamic_srclayer", "shape", "integer", "low", "high")
    DYNAMIC_SRCLAYER_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    dynamic_srclayer: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    integer: bool
    low: float
    high: float
    def __init__(self, dynamic_srclayer: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., integer: bool = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...
