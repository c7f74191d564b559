"""ONNX models that PyTorch's exporter writes, as our nets; skipped where that is not installed (`make test-peers`)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest

from singa_dask import convert
from singa_dask.tensors.tensor import Tensor

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

CHANNELS, SYMBOLS, STEPS = 16, 11, 6


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, CHANNELS, 4, 4)
        self.token, self.pos = nn.Parameter(torch.randn(1, 1, CHANNELS)), nn.Parameter(torch.randn(1, 17, CHANNELS))
        block = nn.TransformerEncoderLayer(CHANNELS, 2, 32, batch_first=True, activation="gelu", norm_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(CHANNELS, 5)

    def forward(self, x: Any) -> Any:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1) + self.pos
        return self.head(self.encoder(y)[:, 0])


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.pos = nn.Embedding(SYMBOLS, CHANNELS), nn.Embedding(STEPS, CHANNELS)
        self.norm, self.qkv = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 3 * CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 32), nn.GELU(approximate="tanh"), nn.Linear(32, CHANNELS))
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, STEPS, STEPS)))

    def forward(self, x: Any) -> Any:
        rows, steps = x.shape
        y = self.table(x) + self.pos(torch.arange(steps))
        q, k, v = (a.view(rows, steps, 2, 8).transpose(1, 2) for a in self.qkv(self.norm(y)).split(CHANNELS, 2))
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        scores = scores.masked_fill(self.mask[:, :, :steps, :steps] == 0, float("-inf")).softmax(-1)
        y = y + (scores @ v).transpose(1, 2).contiguous().view(rows, steps, CHANNELS)
        return F.linear(y + self.mlp(self.norm(y)), self.table.weight)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=1e-3)
        self.deep, self.up = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.ConvTranspose2d(8, 4, 2, 2)
        self.groups, self.head = nn.GroupNorm(2, 4), nn.Linear(8 * 8 * 8, 5)

    def forward(self, x: Any) -> Any:
        y = F.relu6(self.norm(self.first(x)))
        y = F.silu(self.groups(self.up(y + F.hardtanh(self.deep(y)))))
        y = torch.cat([F.interpolate(F.max_pool2d(y, 2, 2, ceil_mode=True), scale_factor=2), y], 1)
        return self.head(F.avg_pool2d(y, 2).flatten(1)).log_softmax(-1)


IMAGES, TEXT = torch.randn(3, 3, 16, 16), torch.arange(18).reshape(3, STEPS) % SYMBOLS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [14, 17, 18])
@pytest.mark.parametrize(("kind", "x"), [(ViT, IMAGES), (Convolutions, IMAGES), (GPT, TEXT)])
def test_what_pytorch_exports_is_read(kind, x, opset):
    torch.manual_seed(0)
    module, file = kind().eval(), io.BytesIO()
    options = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}, "opset_version": opset, "dynamo": False}
    torch.onnx.export(module, (x,), file, **options)
    net = convert.from_onnx(onnx.load_from_string(file.getvalue()))
    with torch.no_grad():
        wanted = module(x).numpy()
    np.testing.assert_allclose(net(Tensor.of(x.numpy())).to_numpy(), wanted, atol=1e-5)
