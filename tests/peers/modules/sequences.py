"""Our nets on sequences, (B, T, ...): `forward` reads the data and gives the loss."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from peers.modules.images import Encoder

from singa_dask import Module, autograd, layers
from singa_dask.layers import (
    GRU,
    LSTM,
    Attention,
    ClassToken,
    Embedding,
    InnerProduct,
    LayerNorm,
    PositionalEmbedding,
    Reverse,
    SoftmaxLoss,
    bidirectional,
)


def symbols(count: int, width: int) -> Embedding:
    return Embedding(vocab_size=count, feature_dim=width)


class Tagger(Module):
    def __init__(self) -> None:
        self.embed, self.lstm, self.scores = symbols(11, 6), LSTM(dim_hidden=5), InnerProduct(num_output=4)
        self.loss = SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.scores(self.lstm(self.embed(x))), y)


class TaggerOfBoth(Tagger):
    there: ClassVar = {"lstm_reverse": "lstm.l0_reverse"}

    def __init__(self) -> None:
        super().__init__()
        self.lstm_reverse = LSTM(dim_hidden=5)

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.scores(bidirectional(self.embed(x), self.lstm, self.lstm_reverse)), y)


class TaggerOfLengths(TaggerOfBoth):
    """The steps after the end of a sequence count in neither direction, nor in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = Reverse()

    def forward(self, x: Any, lengths: Any, y: Any) -> Any:
        x, lengths = self.embed(x), autograd.reshape(lengths, (-1, 1))
        back = self.turn(self.lstm_reverse(self.turn(x, lengths)), lengths)
        scores = self.scores(autograd.cat([self.lstm(x), back], axis=2))
        return self.loss(scores, y, np.arange(6) < lengths)


class LuongAttention(Module):
    def __init__(self) -> None:
        self.source, self.target = symbols(11, 6), symbols(9, 6)
        self.encoder, self.decoder = GRU(dim_hidden=5), GRU(dim_hidden=5)
        self.joined, self.scores, self.loss = InnerProduct(num_output=6), InnerProduct(num_output=9), SoftmaxLoss()

    def forward(self, x: Any, before: Any, y: Any) -> Any:
        states = self.encoder(self.source(x))
        own = self.decoder(self.target(before), states[:, -1])
        weights = autograd.softmax(own @ autograd.transpose(states, (0, 2, 1)))
        read = autograd.cat([weights @ states, own], axis=2)
        return self.loss(self.scores(autograd.tanh(self.joined(read))), y)


class EncoderDecoder(Module):
    def __init__(self) -> None:
        self.source, self.target = symbols(11, 6), symbols(9, 6)
        self.encoder = LSTM(dim_hidden=5, return_cell=True)
        self.decoder, self.scores, self.loss = LSTM(dim_hidden=5), InnerProduct(num_output=9), SoftmaxLoss()

    def forward(self, x: Any, before: Any, y: Any) -> Any:
        states = self.encoder(self.source(x))
        return self.loss(self.scores(self.decoder(self.target(before), states[:, -1])), y)


class GPT(Module):
    def __init__(self) -> None:
        self.embed, self.positions = symbols(11, 12), PositionalEmbedding()
        self.blocks = [Encoder(12, 2, causal=True) for _ in range(2)]
        self.norm, self.scores, self.loss = LayerNorm(), InnerProduct(num_output=11), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = self.positions(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.scores(self.norm(x)), y)


class TiedGPT(GPT):
    def __init__(self) -> None:
        super().__init__()
        shared = [{"share_from": "embed_table"}]
        self.scores = InnerProduct(num_output=11, bias_term=False, transpose=True, param=shared)


class Rotary(Module):
    def __init__(self) -> None:
        self.embed, self.norm = symbols(11, 12), LayerNorm()
        self.attention = Attention(num_heads=3, causal=True, rotary=True)
        self.scores, self.loss = InnerProduct(num_output=11), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        x = self.embed(x)
        return self.loss(self.scores(x + self.attention(self.norm(x))), y)


class CrossAttention(Module):
    def __init__(self) -> None:
        self.attention, self.scores, self.loss = (
            Attention(num_heads=2, unroll_len=1),
            InnerProduct(num_output=5),
            SoftmaxLoss(),
        )

    def forward(self, x: Any, memory: Any, y: Any) -> Any:
        x = x + self.attention(x, memory)
        return self.loss(self.scores(autograd.mean(x, axis=1)), y)


class PaddingMask(Module):
    """The mean is that of the positions before the end of each sequence."""

    def __init__(self) -> None:
        self.attention, self.scores, self.loss = (
            Attention(num_heads=2, unroll_len=1),
            InnerProduct(num_output=5),
            SoftmaxLoss(),
        )

    def forward(self, x: Any, lengths: Any, y: Any) -> Any:
        lengths = autograd.reshape(lengths, (-1, 1))
        x = x + self.attention(x, lengths)
        real = autograd.reshape(lengths, (-1, 1, 1)) > np.arange(6)[:, None]
        mean = autograd.sum(autograd.where(real, x, 0), axis=1) / lengths
        return self.loss(self.scores(mean), y)


class Classifier(Module):
    there: ClassVar = {"token": "token"}

    def __init__(self) -> None:
        self.embed, self.positions, self.token = symbols(11, 8), PositionalEmbedding(), ClassToken()
        self.block, self.norm, self.scores = Encoder(8, 2, unroll_len=1), LayerNorm(), InnerProduct(num_output=5)
        self.loss = SoftmaxLoss()

    def forward(self, x: Any, lengths: Any, y: Any) -> Any:
        x = self.positions(self.token(self.embed(x)))
        lengths = autograd.reshape(lengths, (-1, 1)) + 1
        return self.loss(self.scores(self.norm(self.block(x, lengths))[:, 0]), y)


def ctc(scores: Any, y: Any) -> Any:
    """The negative log likelihood of each sample's labels (B, L); class 0 is blank. scores: (B, T, C).

    Forward over the labels with a blank before, between and after them (Graves et al. 2006)."""
    log_p = autograd.log_softmax(scores, axis=2)
    count = y.shape[1]
    labels = autograd.pad(y[:, :, None], ((0, 0), (0, 0), (1, 0)))
    labels = autograd.pad(autograd.reshape(labels, (-1, 2 * count)), ((0, 0), (0, 1)))
    never = log_p[:, 0, :1] * 0 - 1e30
    real = autograd.not_equal(labels[:, 2:], 0)
    other = autograd.not_equal(labels[:, 2:], labels[:, :-2])
    log_p = [autograd.take_along_axis(log_p[:, step], labels, axis=1) for step in range(scores.shape[1])]
    reached = autograd.cat([log_p[0][:, :2], *[never] * (2 * count - 1)], axis=1)
    for now in log_p[1:]:
        one = autograd.cat([never, reached[:, :-1]], axis=1)
        skipped = autograd.where(other, autograd.where(real, reached[:, :-2], never), never)
        two = autograd.cat([never, never, skipped], axis=1)
        reached = autograd.logsumexp(autograd.stack([reached, one, two], axis=2), axis=2) + now
    return -autograd.logsumexp(reached[:, -2:], axis=1)


class CTC(Module):
    def __init__(self) -> None:
        self.hidden, self.scores = InnerProduct(num_output=8), InnerProduct(num_output=6)
        self.loss = layers.Loss(ctc, labels=1)

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.scores(autograd.tanh(self.hidden(x))), y)


NETS = {
    "lstm_tagger": Tagger,
    "bilstm_tagger": TaggerOfBoth,
    "bilstm_lengths": TaggerOfLengths,
    "seq2seq_gru": LuongAttention,
    "seq2seq_lstm": EncoderDecoder,
    "gpt": GPT,
    "gpt_tied": TiedGPT,
    "rotary": Rotary,
    "cross_attention": CrossAttention,
    "padding_mask": PaddingMask,
    "encoder_cls": Classifier,
    "ctc": CTC,
}
