"""Nets with branches, shared parameters and layers of users, drawn at random."""

from random import Random

from support.user_layers import Root, Scaled, SquaredError, Total

from singa_dask.layers import (
    GELU,
    LRN,
    Add,
    BatchNorm,
    Concate,
    Convolution,
    Dropout,
    GlobalPooling,
    GroupNorm,
    InnerProduct,
    LayerNorm,
    Max,
    Mul,
    Pooling,
    RecordInput,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    Tanh,
    TransposedConvolution,
    Upsampling,
)

CLASSES = 5


class RandomNet:
    """Draws layers whose sources are layers drawn before. tops: (layer, its sample shape). dims: what a layer's
    partition_dim may be. depth: the least and the greatest number of draws. heads: losses at the end."""

    def __init__(self, seed, dims=(None, None, 0, 1), depth=(3, 9), heads=3):
        self.random, self.dims = Random(seed), dims
        self.layers = []
        self.shape = self.random.choice([(8,), (5, 5, 3)])
        store = [self.shape[-1], *self.shape[:-1]]
        self.tops = [(self._kept(RecordInput, shape=store), self.shape)]
        for _ in range(self.random.randint(*depth)):
            source, shape = self.random.choice(self.tops[-4:])
            ways = [self.dense, self.same, self.same, self.total, self.concatenated, self.copied, self.sliced]
            self.random.choice(ways + [self.tied if len(shape) == 1 else self.convolved] * 2)(source, shape)
        for source, _ in self.tops[-heads:]:
            out = self._kept(InnerProduct, source, num_output=CLASSES, partition_dim=self.dim())
            self._kept(self.random.choice([SoftmaxLoss, SquaredError]), [out, self.layers[0]])

    def _kept(self, cls, *args, **conf):
        self.layers.append(cls(f"l{len(self.layers)}", *args, **conf))
        return self.layers[-1]

    def add(self, shape, cls, *args, **conf):
        self.tops.append((self._kept(cls, *args, partition_dim=self.dim(), **conf), shape))

    def dim(self):
        return self.random.choice(self.dims)

    def dense(self, source, shape):
        units = self.random.randint(4, 12)
        bias, transposed = self.random.random() < 0.8, self.random.random() < 0.3
        self.add((units,), InnerProduct, source, num_output=units, bias_term=bias, transpose=transposed)

    def same(self, source, shape):
        kinds = [
            (Tanh, {}),
            (GELU, {}),
            (Dropout, {"dropout_ratio": 0.3}),
            (BatchNorm, {}),
            (Softmax, {}),
            (Scaled, {}),
            (LayerNorm, {}),
        ]
        kinds += [(Root, {})] if len(shape) == 1 else [(LRN, {"local_size": 3 + 2 * self.random.randint(0, 2)})]
        kinds += [(GroupNorm, {"num_groups": n}) for n in (2, 3, 4) if shape[-1] % n == 0]
        kind, conf = self.random.choice(kinds)
        layer = self._kept(kind, source, partition_dim=self.dim(), **conf)
        self.add(shape, Tanh, layer) if kind is Scaled else self.tops.append((layer, shape))

    def convolved(self, source, shape):
        filters = self.random.randint(4, 6)
        kind = self.random.choice([Convolution, Convolution, TransposedConvolution])
        conf = {"num_filters": filters, "kernel": 3, "pad": 1, "partition_dim": self.dim()}
        if shape[-1] % 2 == 0 and self.random.random() < 0.3:
            conf |= {"groups": 2, "num_filters": filters // 2 * 2}
            filters = filters // 2 * 2
        layer = self._kept(kind, source, **conf)
        if self.random.random() < 0.2:
            layer = self._kept(Upsampling, layer, method=self.random.choice(["NEAREST", "BILINEAR"]))
            layer = self._kept(Pooling, layer, kernel=2, stride=2, pool="AVG", partition_dim=self.dim())
        pool = self.random.choice(["MAX", "AVG"])
        if self.random.random() < 0.2:
            pooled = self._kept(GlobalPooling, layer, pool=pool, partition_dim=self.dim())
            self.add((*shape[:2], filters), Mul, [layer, pooled])
        self.add((*shape[:2], filters), Pooling, layer, kernel=3, stride=1, pad=1, pool=pool)

    def tied(self, source, shape):
        units, name = self.random.randint(4, 9), f"w{len(self.layers)}"
        layer = self._kept(InnerProduct, source, num_output=units, param=[{"name": name}], partition_dim=self.dim())
        shared = [{"name": f"{name}_", "share_from": name}]
        back = self._kept(InnerProduct, layer, num_output=shape[0], transpose=True, param=shared)
        self.tops += [(layer, (units,)), (back, shape)]

    def _like(self, shape):
        return [top for top, other in self.tops if other == shape]

    def total(self, source, shape):
        kind = self.random.choice([Total, Add, Mul, Max])
        layer = self._kept(kind, [source, *self.random.choices(self._like(shape), k=2)], partition_dim=self.dim())
        self.add(shape, Tanh, layer)

    def concatenated(self, source, shape):
        others = [(top, other[-1]) for top, other in self.tops if other[:-1] == shape[:-1]]
        chosen = [(source, shape[-1]), *self.random.choices(others, k=2)]
        width = sum(features for _, features in chosen)
        self.add((*shape[:-1], width), Concate, [top for top, _ in chosen], concate_dim=1)

    def copied(self, source, shape):
        copies = self._kept(Split, source, num_splits=2, partition_dim=self.dim())
        self.add(shape, Tanh, copies)
        self.dense(copies, shape)

    def sliced(self, source, shape):
        """Slices of the features, or of the mini-batch, which are joined again."""
        dim = self.random.choice([0, 1])
        pieces = self._kept(Slice, source, slice_dim=dim, num_slices=2, partition_dim=self.dim())
        first = self._kept(Dropout, pieces, dropout_ratio=0.4, partition_dim=self.dim())
        second = self._kept(Tanh, pieces, partition_dim=self.dim())
        self.add(shape, Concate, [second, first], concate_dim=dim)
