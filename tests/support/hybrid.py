"""A job with what SINGA's hybrid jobs have: cuDNN's names of layers, its stores, GPUs, and one layer split."""

HYBRID = """
name: "digits-hybrid"
train_steps: 12
test_freq: 0
disp_freq: 4
gpu: 0
gpu: 1
train_one_batch { alg: kBP }
updater {
  type: kSGD
  momentum: 0.8
  weight_decay: 0.001
  learning_rate {
    type: kFixedStep
    fixedstep_conf: { step: 0 step: 6 step: 9 step_lr: 0.05 step_lr: 0.02 step_lr: 0.005 }
  }
}
neuralnet {
  layer {
    name: "data"
    type: kRecordInput
    include: kTrain
    partition_dim: 0
    store_conf {
      backend: "kvfile" path: "digits/train.bin" mean_file: "digits/mean.bin" batchsize: 30
      shape: 1 shape: 8 shape: 8
    }
  }
  layer {
    name: "data"
    type: kRecordInput
    include: kTest
    store_conf {
      backend: "kvfile" path: "digits/test.bin" mean_file: "digits/mean.bin" batchsize: 30
      shape: 1 shape: 8 shape: 8
    }
  }
  layer {
    name: "conv1" type: kCudnnConv srclayers: "data" partition_dim: 0
    convolution_conf { num_filters: 6 kernel: 3 stride: 1 pad: 1 }
    param { name: "w1" init { type: kGaussian std: 0.3 } }
    param { name: "b1" lr_scale: 2.0 init { type: kConstant value: 0 } }
  }
  layer {
    name: "pool1" type: kCudnnPool srclayers: "conv1" partition_dim: 0
    pooling_conf { pool: MAX kernel: 3 stride: 2 }
  }
  layer { name: "relu1" type: kCudnnActivation srclayers: "pool1" activation_conf { type: RELU } }
  layer {
    name: "norm1" type: kCudnnLRN srclayers: "relu1" partition_dim: 0
    lrn_conf { local_size: 3 alpha: 0.01 beta: 0.75 }
  }
  layer {
    name: "ip1" type: kInnerProduct srclayers: "norm1" partition_dim: 1
    innerproduct_conf { num_output: 10 }
    param { name: "w2" wd_scale: 25 init { type: kGaussian std: 0.1 } }
    param { name: "b2" lr_scale: 2.0 wd_scale: 0 init { type: kConstant value: 0 } }
  }
  layer {
    name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "data" partition_dim: 0
    softmaxloss_conf { topk: 1 }
  }
}
cluster {
  nworker_groups: 1
  nserver_groups: 1
  nworkers_per_group: 2
  nworkers_per_procs: 2
  workspace: "digits"
}
"""
