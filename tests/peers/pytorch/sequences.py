"""Nets on sequences in PyTorch. `forward` gives the loss; sequences are (B, T, ...)."""

from __future__ import annotations

from typing import Any

import torch
from peers.pytorch.images import Encoder
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def per_position(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), y.flatten())


class Tagger(nn.Module):
    def __init__(self, both: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=both)
        self.scores = nn.Linear(10 if both else 5, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return per_position(self.scores(self.lstm(self.embed(x))[0]), y)


class TaggerOfLengths(nn.Module):
    """The steps after the end of a sequence count in neither direction, nor in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm, self.scores = nn.LSTM(6, 5, batch_first=True, bidirectional=True), nn.Linear(10, 4)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        losses = F.cross_entropy(self.scores(states).transpose(1, 2), y, reduction="none")
        return (losses * (torch.arange(x.shape[1]) < lengths[:, None])).mean()


class LuongAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(11, 6), nn.Embedding(9, 6)
        self.encoder, self.decoder = nn.GRU(6, 5, batch_first=True), nn.GRU(6, 5, batch_first=True)
        self.joined, self.scores = nn.Linear(10, 6), nn.Linear(6, 9)

    def forward(self, x: Tensor, before: Tensor, y: Tensor) -> Tensor:
        states, last = self.encoder(self.source(x))
        own, _ = self.decoder(self.target(before), last)
        read = torch.softmax(own @ states.transpose(1, 2), -1) @ states
        return per_position(self.scores(torch.tanh(self.joined(torch.cat([read, own], -1)))), y)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(11, 6), nn.Embedding(9, 6)
        self.encoder, self.decoder = nn.LSTM(6, 5, batch_first=True), nn.LSTM(6, 5, batch_first=True)
        self.scores = nn.Linear(5, 9)

    def forward(self, x: Tensor, before: Tensor, y: Tensor) -> Tensor:
        _, state = self.encoder(self.source(x))
        return per_position(self.scores(self.decoder(self.target(before), state)[0]), y)


class GPT(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(11, 12), nn.Embedding(8, 12)
        self.blocks = nn.ModuleList([Encoder(12, 2) for _ in range(2)])
        self.norm, self.scores = nn.LayerNorm(12), nn.Linear(12, 11, bias=not tied)
        if tied:
            self.scores.weight = self.embed.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.embed(x) + self.positions.weight
        for block in self.blocks:
            x = block(x, causal=True)
        return per_position(self.scores(self.norm(x)), y)


class RotaryAttention(nn.Module):
    """Causal; features i and i + d / 2 of a head turn together (Su et al. 2021)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, steps, width = x.shape
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        q, k, v = (each.reshape(rows, steps, self.heads, -1).transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(rows, steps, width))

    def turned(self, x: Tensor) -> Tensor:
        steps, half = x.shape[2], x.shape[3] // 2
        angle = torch.arange(steps)[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 12), nn.LayerNorm(12)
        self.attention, self.scores = RotaryAttention(12, 3), nn.Linear(12, 11)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.embed(x)
        return per_position(self.scores(x + self.attention(self.norm(x))), y)


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.scores = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor, memory: Tensor, y: Tensor) -> Tensor:
        x = x + self.attention(x, memory, memory, need_weights=False)[0]
        return F.cross_entropy(self.scores(x.mean(1)), y)


class PaddingMask(nn.Module):
    """The mean is that of the positions before the end of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.scores = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        x = x + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        mean = (x * ~padding[..., None]).sum(1) / lengths[:, None]
        return F.cross_entropy(self.scores(mean), y)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(11, 8), nn.Embedding(7, 8)
        self.token = nn.Parameter(torch.empty(1, 8))
        self.block, self.norm, self.scores = Encoder(8, 2), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), 1, 8), self.embed(x)], 1) + self.positions.weight
        x = self.block(x, padding=torch.arange(x.shape[1]) > lengths[:, None])
        return F.cross_entropy(self.scores(self.norm(x)[:, 0]), y)


class CTC(nn.Module):
    """The sum of a sample's negative log likelihood; class 0 is blank."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.scores = nn.Linear(5, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        log_p = F.log_softmax(self.scores(torch.tanh(self.hidden(x))), -1).transpose(0, 1)
        steps, rows = log_p.shape[:2]
        lengths: list[Any] = [torch.full((rows,), steps), torch.full((rows,), y.shape[1])]
        return F.ctc_loss(log_p, y, *lengths, reduction="none").mean()


NETS = {
    "lstm_tagger": lambda: Tagger(both=False),
    "bilstm_tagger": lambda: Tagger(both=True),
    "bilstm_lengths": TaggerOfLengths,
    "seq2seq_gru": LuongAttention,
    "seq2seq_lstm": EncoderDecoder,
    "gpt": lambda: GPT(tied=False),
    "gpt_tied": lambda: GPT(tied=True),
    "rotary": Rotary,
    "cross_attention": CrossAttention,
    "padding_mask": PaddingMask,
    "encoder_cls": Classifier,
    "ctc": CTC,
}
