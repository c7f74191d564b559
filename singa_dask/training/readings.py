"""How input layers read samples: parameters are trained further only on samples that are read as before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from singa_dask.data import Manifest
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.store import columns_of
from singa_dask.data.windows import check_same_step, trained_step
from singa_dask.errors import CheckpointError
from singa_dask.job import runs_in
from singa_dask.job.job_pb2 import JobProto, Phase, StoreProto
from singa_dask.job.stores import net_shape, store_of
from singa_dask.layers.normalisation import given_numbers
from singa_dask.training.feed import data_key

_SHOWN = 4
_AS_READ = " as read"
Reading = Mapping[str, Any]


def reading_key(layer: str) -> str:
    """The key of `fingerprint` in `Prepared.data`."""
    return data_key(Phase.kTrain, layer) + _AS_READ


def is_reading(key: str) -> bool:
    """Whether this is a `reading_key`."""
    return key.endswith(_AS_READ)


def scale_of(store: StoreProto) -> Reading:
    """What is subtracted from samples and targets, and what they are divided by: one number if all values have it."""
    names = ("mean", "std", "target_mean", "target_std")
    numbers = {name: given_numbers(store, name) or [float(name.endswith("std"))] for name in names}
    return {name: found[:1] if len({*found}) == 1 else found for name, found in numbers.items()}


def reading_of(store: StoreProto) -> Reading:
    """What a layer takes from the shards, and in which form: the fields of a store_conf that is resolved."""
    column, labels = columns_of(store, Manifest.load(Path(store.path)))
    return {
        "column": column.name,
        "label": "" if labels is None else labels.name,
        "shape": list(net_shape(tuple(store.shape))),
        "time_steps": store.time_steps,
        "lengths": store.lengths,
        **scale_of(store),
    }


def fingerprint(store: StoreProto) -> str:
    """Equal if and only if samples are read alike."""
    return hashlib.blake2b(json.dumps(reading_of(store)).encode(), digest_size=16).hexdigest()


def differences(before: JobProto, now: JobProto, of: Callable[[StoreProto], Reading]) -> list[str]:
    """In what the input layers of training of two jobs differ. of: a store_conf."""
    earlier = {layer.name: store_of(layer) for layer in before.neuralnet.layer if runs_in(layer, Phase.kTrain)}
    found = []
    for layer in now.neuralnet.layer:
        store, was = store_of(layer), earlier.get(layer.name)
        if was is None or not (was.path and store.path) or layer.srclayers or not runs_in(layer, Phase.kTrain):
            continue
        was.path = store.path  # the same shards, or a copy of them
        one, other = of(was), of(store)
        told = [
            f"{key} is {_shown(other[key])}, and was {_shown(one[key])}" for key in other if other[key] != one[key]
        ]
        if told:
            found.append(f"in store_conf of layer {layer.name!r}, {', '.join(told)}")
    return found


def other_scale(what: str, saved: str, job: JobProto) -> list[str]:
    """What to say if parameters were trained with other means and deviations than this job has. saved: the text of the
    job that trained them, "" if it is not known."""
    others = differences(text_format.Parse(saved, JobProto()), job, scale_of)
    told = f"{what} were trained with another normalisation: {'; '.join(others)}. The numbers of this job count"
    way = "To keep the earlier ones, write them into store_conf in place of normalise and normalise_target"
    return [f"{told}. {way}"] if others else []


def check_steps(saved: str, job: JobProto) -> None:
    """Raise ConfigError if parameters were trained on windows of records at another step. saved: see `other_scale`."""
    trained = {layer.name: store_of(layer) for layer in text_format.Parse(saved, JobProto()).neuralnet.layer}
    for layer in job.neuralnet.layer:
        store = store_of(layer)
        check_same_step(trained_step(store), trained_step(trained.get(layer.name, store)), store.path)


def check_same_order(where: Path, saved: Mapping[str, str], described: Mapping[str, str]) -> None:
    """Raise CheckpointError if parameters were trained with the same features or classes in another order: those of
    each would count for another one. saved, described: descriptions of data by input layer, in a checkpoint and now.
    """
    before, now = (
        {column.name: column for text in texts.values() for column in read_description(text).columns}
        for texts in (saved, described)
    )
    for name in before.keys() & now.keys():
        one, other = before[name].classes, now[name].classes
        pairs = [("features", before[name].names, now[name].names)]
        if isinstance(one, tuple) and isinstance(other, tuple):
            pairs.append(("classes", one, other))
        for what, old, new in pairs:
            if old != new and sorted(old) == sorted(new):
                told = f"its parameters were trained with the {what} {', '.join(old)}, and these data have them in"
                hint = "Write the shards in that order, in Python with like= the shards of that run."
                raise CheckpointError(f"{where}: {told} another order, {', '.join(new)}. {hint}")


def _shown(value: Any) -> str:
    if not isinstance(value, list):
        return repr(value)
    shown = [f"{number:g}" for number in value[:_SHOWN]]
    return shown[0] if len(value) == 1 else f"[{', '.join([*shown, *['...'] * (len(value) > _SHOWN)])}]"
