"""The nets that are compared with PyTorch: what each reads, how it is trained, and what is expected of it.

A net trains the same way in a loop over tensors, in a Model, and in a job under AllReduce with two workers: the losses
of five steps, and the parameters after them, are those of PyTorch. The nets are those that PyTorch's users write;
`ROWS` names them by architecture or technique. What a net needs that is not offered is said here by name, and refused
with this reason. No other net is refused, and at most four have a backward pass written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from peers.drawn import Data, binary, image, integers, mask, normal, sequence, uniform

ALTERNATING = "alternating optimizers"
ACCUMULATION = "gradient accumulation"
SIXTEEN_BITS = "16-bit computing"
CHECKPOINTING = "activation checkpointing"
STATE = "state of a layer of one's own"
REASONS = (ALTERNATING, ACCUMULATION, SIXTEEN_BITS, CHECKPOINTING, STATE)
EQUAL = ""
SGD = {"rule": "SGD", "lr": 0.02, "momentum": 0.9}


@dataclass(frozen=True)
class Net:
    """row: what its users would call it. data: what `forward` reads, by name. update: the rule, in PyTorch's words.

    rows: those of a mini-batch that are trained on; none for all. loop, model, job: equal, or refused for a reason.
    own: whether a backward pass is written by hand.
    """

    row: str
    data: Mapping[str, Data]
    update: Mapping[str, Any] = field(default_factory=lambda: SGD)
    loop: str = EQUAL
    model: str = EQUAL
    job: str = EQUAL
    own: bool = False
    rows: tuple[int, ...] = ()


def _net(row: str, update: Mapping[str, Any] = SGD, **data: Data) -> Net:
    return Net(row, data, {**SGD, **update} if "rule" not in update else update)


def _outside_loops(row: str, reason: str, update: Mapping[str, Any] = SGD, **data: Data) -> Net:
    return Net(row, data, update, model=reason, job=reason)


def _nowhere(row: str, reason: str, **data: Data) -> Net:
    return Net(row, data, loop=reason, model=reason, job=reason)


_SMALL, _LABEL = image(3, 8, 8), integers(5)
_FEATURES, _VALUES = normal(6), uniform(3)
_WORDS, _TAGS = sequence(6, high=11), sequence(6, high=4)
_TEXT, _NEXT = sequence(8, high=11), sequence(8, high=11)
_GIVEN, _ANSWER = sequence(5, high=9), sequence(5, high=9)
ADAM = {"rule": "Adam", "lr": 0.01}

NETS: dict[str, Net] = {
    # Images
    "lenet": _net("LeNet", x=image(1, 16, 16), y=_LABEL),
    "resnet18": _net("ResNet-18 CIFAR", x=image(3, 16, 16), y=_LABEL),
    "resnet50": _net("ResNet-50", {"lr": 0.01}, x=image(3, 8, 8), y=_LABEL),
    "mobilenet_v2": _net("MobileNetV2", x=image(3, 16, 16), y=_LABEL),
    "densenet": _net("DenseNet", x=image(3, 16, 16), y=_LABEL),
    "inception": _net("Inception, VGG, SqueezeNet", x=image(3, 16, 16), y=_LABEL),
    "vgg": _net("Inception, VGG, SqueezeNet", x=image(3, 16, 16), y=_LABEL),
    "squeezenet": _net("Inception, VGG, SqueezeNet", x=image(3, 16, 16), y=_LABEL),
    "unet": _net("U-Net, binary masks", x=image(2, 16, 16), y=mask(1, 16, 16)),
    "segmentation": _net("segmentation of several classes", x=_SMALL, y=integers(4, 8, 8)),
    "vit": _net("ViT, mean over patches", x=image(3, 16, 16), y=_LABEL),
    "vit_cls": _net("ViT with CLS token", x=image(3, 16, 16), y=_LABEL),
    # Generative nets and metric learning
    "autoencoder": _net("autoencoder", x=image(1, 8, 8)),
    "vae": _net("VAE", x=uniform(12), noise=normal(3)),
    "gan": _outside_loops("GAN, two Adams", ALTERNATING, ADAM, x=normal(6), noise=normal(3)),
    "siamese": _net("Siamese contrastive, triplet", a=_FEATURES, b=_FEATURES, same=binary(1)),
    "triplet": _net("Siamese contrastive, triplet", a=_FEATURES, p=_FEATURES, n=_FEATURES),
    "two_towers": _net("two towers, in-batch negatives", a=_FEATURES, b=_FEATURES),
    # Sequences
    "lstm_tagger": _net("LSTM / BiLSTM tagger", x=_WORDS, y=_TAGS),
    "bilstm_tagger": _net("LSTM / BiLSTM tagger", x=_WORDS, y=_TAGS),
    "bilstm_lengths": _net("BiLSTM, variable lengths", x=_WORDS, lengths=integers(7, low=2), y=_TAGS),
    "seq2seq_gru": _net("seq2seq GRU + Luong attention", x=_WORDS, before=_GIVEN, y=_ANSWER),
    "seq2seq_lstm": _net("seq2seq LSTM", x=_WORDS, before=_GIVEN, y=_ANSWER),
    "gpt": _net("GPT", x=_TEXT, y=_NEXT),
    "gpt_tied": _net("GPT, tied weights", x=_TEXT, y=_NEXT),
    "rotary": _net("rotary positions, cross-attention, padding mask", x=_TEXT, y=_NEXT),
    "cross_attention": _net(
        "rotary positions, cross-attention, padding mask", x=sequence(5, 8), memory=sequence(7, 8), y=_LABEL
    ),
    "padding_mask": _net(
        "rotary positions, cross-attention, padding mask", x=sequence(6, 8), lengths=integers(7, low=2), y=_LABEL
    ),
    "encoder_cls": _net("encoder classifier, CLS + padding mask", x=_WORDS, lengths=integers(7, low=2), y=_LABEL),
    # Tables
    "embedding": _net("embedding of 50 k words", x=integers(50_000), y=_LABEL),
    "embedding_bag": _net("embedding of 50 k words", x=integers(50, 4), y=_LABEL),
    "dlrm": _net("DLRM, wide & deep", x=normal(4), a=integers(9), b=integers(7), c=integers(5), y=binary(1)),
    "wide_and_deep": _net("DLRM, wide & deep", x=normal(4), a=integers(9), b=integers(7), y=binary(1)),
    # Formulas
    "multi_task": _net("multi-task, two weighted losses", x=_FEATURES, y=_LABEL, t=_VALUES),
    "flow": _net("normalising flow", x=_FEATURES),
    "pinn": _net("PINN, gradient penalty", x=uniform(2), edge=uniform(1)),
    "gradient_penalty": _net("PINN, gradient penalty", x=_FEATURES, fake=_FEATURES, share=uniform(1)),
    "graph_net": _net("graph net, A X W", adjacency=replace(uniform(6, 6), steps=True), x=sequence(6, 4), y=_LABEL),
    "focal": _net("focal, dice, CTC", x=_FEATURES, y=binary(3)),
    "dice": _net("focal, dice, CTC", x=image(2, 8, 8), y=mask(1, 8, 8)),
    "ctc": _net("focal, dice, CTC", x=sequence(8, 5), y=integers(6, 3, low=1)),
    # Losses
    "class_weights": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_LABEL),
    "label_smoothing": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_LABEL),
    "pos_weight": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=binary(3)),
    "mse": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_VALUES),
    "mse_sum": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_VALUES),
    "mae": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_VALUES),
    "mae_sum": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_VALUES),
    "huber": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_VALUES),
    "huber_sum": _net("class weights, label smoothing, pos_weight, value losses", x=_FEATURES, y=_VALUES),
    # Training
    "mixup": _net("mixup", x=_FEATURES, y=_LABEL, other=_LABEL, share=uniform(1)),
    "distillation": _net("distillation", x=_FEATURES, y=_LABEL),
    "accumulation": _outside_loops("gradient accumulation", ACCUMULATION, x=_FEATURES, y=_LABEL),
    "clipping": _net("clipping, freezing, rates, averages, rules", {"clip_norm": 0.5}, x=_FEATURES, y=_LABEL),
    "freezing": _net("clipping, freezing, rates, averages, rules", {"scale": {"first.*": 0.0}}, x=_FEATURES, y=_LABEL),
    "rate_per_layer": _net(
        "clipping, freezing, rates, averages, rules", {"scale": {"first.*": 0.1}}, x=_FEATURES, y=_LABEL
    ),
    "averages": _net("clipping, freezing, rates, averages, rules", {"ema": 0.8}, x=_FEATURES, y=_LABEL),
    "weight_decay": _net("clipping, freezing, rates, averages, rules", {"weight_decay": 0.1}, x=_FEATURES, y=_LABEL),
    "nesterov": _net("clipping, freezing, rates, averages, rules", {"nesterov": True}, x=_FEATURES, y=_LABEL),
    "adam": _net("clipping, freezing, rates, averages, rules", ADAM, x=_FEATURES, y=_LABEL),
    "adamw": _net(
        "clipping, freezing, rates, averages, rules",
        {"rule": "AdamW", "lr": 0.01, "weight_decay": 0.1},
        x=_FEATURES,
        y=_LABEL,
    ),
    "adagrad": _net(
        "clipping, freezing, rates, averages, rules",
        {"rule": "Adagrad", "lr": 0.05, "eps": 1e-30},
        x=_FEATURES,
        y=_LABEL,
    ),
    "adamax": _net(
        "clipping, freezing, rates, averages, rules", {"rule": "Adamax", "lr": 0.01}, x=_FEATURES, y=_LABEL
    ),
    "fine_tuning": _net("fine-tuning from a checkpoint", {"scale": {"body.*": 0.1}}, x=_FEATURES, y=_LABEL),
    "batch_norm": _net("SyncBN", x=_SMALL, y=_LABEL),
    "batch_norm_twice": _net("SyncBN", a=_FEATURES, b=_FEATURES, y=_LABEL),
    "bfloat16": _nowhere("bf16 / fp16 computing", SIXTEEN_BITS, x=_FEATURES, y=_LABEL),
    "float16": _nowhere("bf16 / fp16 computing", SIXTEEN_BITS, x=_FEATURES, y=_LABEL),
    "activation_checkpointing": _nowhere("activation checkpointing", CHECKPOINTING, x=_FEATURES, y=_LABEL),
    "dropout": _net("dropout", x=_FEATURES, kept=binary(8), y=_LABEL),
    "drop_path": _net("dropout", x=_FEATURES, kept=binary(1), y=_LABEL),
    "weight_norm": _net("weight norm", x=_FEATURES, y=_LABEL),
    "spectral_norm": _outside_loops("weight norm", STATE, x=_FEATURES, y=_LABEL),
    "codebook": _outside_loops("weight norm", STATE, x=_FEATURES, y=_LABEL),
    "own_layer": Net("own layer with backward", {"x": _FEATURES, "y": _LABEL}, own=True),
    "k_fold": Net("k-fold", {"x": _FEATURES, "y": _LABEL}, rows=(0, 1, 4, 5, 6, 7)),
}
ROWS = tuple(dict.fromkeys(net.row for net in NETS.values()))
