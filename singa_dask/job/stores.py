"""An input layer's settings for the loader, from whichever block holds them."""

from __future__ import annotations

import json
import math
from typing import Any

from singa_dask.job.fields import assign
from singa_dask.job.job_pb2 import LayerProto, LayerType, StoreProto

# Settings of the loader, which an input layer of a user's own has in user_conf.
_LOADING = ("batchsize", "shuffle", "random_skip", "validation_share", "has_label")


def store_of(layer: LayerProto) -> StoreProto:
    """A copy of the layer's store_conf; for a kCharRNN its char_rnn_conf, for a user's layer its user_conf as one."""
    store = StoreProto()
    if layer.user_type and layer.user_conf and not layer.srclayers:
        given = json.loads(layer.user_conf)
        for name in _LOADING:
            if name in given:
                assign(store, name, given[name], f"layer {layer.name!r}.user_conf.{name}")
        return store
    if layer.type != LayerType.kCharRNN:
        store.CopyFrom(layer.store_conf)
        return store
    conf = layer.char_rnn_conf
    store.path, store.sequence, store.lookahead, store.has_label = conf.path, conf.unroll_len, 1, False
    store.batchsize.append(conf.batchsize)
    store.shape.append(1)
    return store


def reads_windows(store: Any) -> bool:
    """Whether rows (of a store_conf or StreamConf) are windows of the records, in random order, and not sequences that
    continue from step to step."""
    return store.horizon > 0 or store.stride > 0


def steps_of(store: StoreProto) -> int:
    """The time steps of a row, which layers read one by one; 0 if a row is a single sample."""
    return max(store.time_steps or store.sequence, 0)


def records_of(store: StoreProto) -> int:
    """The records of a row: its time steps, and those of its lookahead; 0 if a row is a single sample."""
    return steps + store.lookahead if (steps := steps_of(store)) else 0


def answers_of(store: StoreProto) -> int:
    """The labels or targets of a row; 0 if it has a single one, whatever its shape."""
    return store.horizon or (0 if store.time_steps else records_of(store))


def answers_rows(store: StoreProto) -> bool:
    """Whether a row is a sequence with labels or targets of its own, and not with one for each of its records."""
    return store.time_steps > 0 or store.horizon > 0


def net_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in the net of samples of a job's `shape`: (C, ...) -> (..., C), (H, W) -> (H, W, 1), (D,) -> (D,)."""
    if len(shape) == 2:
        return *shape, 1
    return (*shape[1:], shape[0]) if len(shape) > 2 else shape


def row_shape(records: int, record: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row of `records` records: (records,) if a record is one value, else (records, *record).

    records: 0 if a row is a single record and not a sequence.
    """
    if not records:
        return record
    return (records,) if math.prod(record) == 1 else (records, *record)
