"""`singa-dask new`: a commented job file with a net that suits the shards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data import Manifest, ShardFolder, make_stream, resolve
from singa_dask.data.catalogue import load_recipe, recipe_names
from singa_dask.data.columns import IDENTITY, Column, Role
from singa_dask.data.manifest import MANIFEST_FILE
from singa_dask.data.resolve import SCHEME
from singa_dask.errors import ConfigError, DataError, Problem, disk_full, no_room
from singa_dask.estimators.nets import field_layers, is_field, layers_for, outputs_for, text_layers
from singa_dask.files import kind_of
from singa_dask.job import Job, job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import CharRNN, Concate, RecordInput
from singa_dask.supervision.given import factor_of, weighed
from singa_dask.training.prepare import prepare
from singa_dask.updaters import Adam, RMSProp

EPOCHS, LEAST_STEPS, TEXT_STEPS = 20, 1000, 5000
BATCH_SIZE, EVALUATED, SHARE = 64, 500, 0.1
# Values of the features in a mini-batch of fields, and in one that is evaluated.
FIELD_VALUES, EVALUATED_VALUES = 1 << 18, 1 << 20
# Of the labels, at most so many are counted; a class is rare if its share of the samples is
# smaller than this, and than half of an equal share.
COUNTED, RARE = 10_000_000, 0.1
STEPS_IN_TIME, TEXT_ROWS, HIDDEN_STATE = 50, 50, 256
TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class SplitShards:
    """Shards of one split. path: as the job names them."""

    path: str
    manifest: Manifest

    def batches(self, batch: int, **store: Any) -> int:
        """Mini-batches of an epoch of training."""
        conf = RecordInput(path=self.path, batchsize=batch, **store).proto.store_conf
        return ceil(make_stream(conf, self.manifest, seed=0, phase=Phase.kTrain).samples / batch)


def write_job(shards: str, out: Path, say: Callable[[str], object] = lambda text: None) -> Job:
    """Write a job file for these shards: a folder, one with a folder per split, or a named data set. say: is called
    with what the user should know of the choices.

    Raises ConfigError if `out` exists, or there is nothing to predict; DataError for bad shards.
    """
    if out.exists():
        raise ConfigError(Problem("out", "exists already", str(out), "Name another file, or remove it."))
    splits = find_splits(shards)
    job, comments = new_job(re.sub(r"[^\w-]+", "-", Path(shards.removeprefix(SCHEME)).name or "job"), splits, say)
    text = commented(job_to_text(job.proto), {key: said.replace("JOB", out.name) for key, said in comments.items()})
    made = Job.from_text(text)
    prepare(made)
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if no_room(error):
            out.unlink(missing_ok=True)
            raise DataError(disk_full(out, error)) from error
        message = f"cannot be written ({error.strerror})"
        raise ConfigError(Problem("out", message, str(out), "Name a file in another folder.")) from error
    return made


def find_splits(shards: str) -> dict[str, SplitShards]:
    """The splits of these shards by name; "train" is always there. Raises DataError, ConfigError."""
    named = shards.removeprefix(SCHEME)
    if shards.startswith(SCHEME) or (not Path(shards).exists() and named in recipe_names()):
        name = named.partition("/")[0]
        paths = {split: f"{SCHEME}{name}/{split}" for split in load_recipe(name).splits}
    else:
        folder = Path(shards).expanduser().absolute()
        inside = {split: str(folder / split) for split in (TRAIN, VALIDATION, TEST)}
        paths = {split: path for split, path in inside.items() if kind_of(Path(path) / MANIFEST_FILE)}
        if TRAIN not in paths:
            paths = {TRAIN: str(folder)}
    return {split: SplitShards(path, Manifest.load(resolve(path))) for split, path in paths.items()}


def new_job(
    name: str, splits: Mapping[str, SplitShards], say: Callable[[str], object] = lambda text: None
) -> tuple[Job, dict[str, str]]:
    """A job for these splits, and the comments that explain its fields, by the fields' names."""
    manifest = splits[TRAIN].manifest
    features, targets = manifest.features, manifest.targets
    if targets is None and isinstance(features.classes, tuple) and features.values == 1:
        return _text_job(name, splits, len(features.classes))
    if targets is None:
        message = "have neither labels nor targets, so there is nothing to predict"
        hint = "Write them with labels, or write a job file for an auto-encoder by hand."
        raise ConfigError(Problem("shards", message, splits[TRAIN].path, hint))
    if targets.role is Role.LABEL and targets.num_classes is None:
        hint = "Write them again: shards of today know their classes."
        raise ConfigError(Problem("shards", "do not say how many classes they have", splits[TRAIN].path, hint))
    stacked = _stacked(manifest)
    job, comments = _columns_job(name, splits, stacked, targets)
    if len(stacked) > 1:
        names = ", ".join(column.name for column in stacked)
        say(f"{names}: stacked as the {_shape_of(stacked)[-1]} channels of one image.")
    for line in comments["name"].splitlines():
        if line.startswith("Not read"):
            say(line)
    if "rare" in comments.get("keep_best", ""):
        say(f"keep_best: {job.proto.keep_best}. {comments['keep_best'].partition('. ')[2]}")
    return job, comments


def _stacked(manifest: Manifest) -> list[Column]:
    """The columns of features that are the channels of one image, or the first column."""
    columns = [column for column in manifest.columns if column.role is Role.FEATURE]
    images = len({column.net_shape[:2] for column in columns}) == 1 and len(columns[0].net_shape) == 3
    return columns if images and all(len(column.net_shape) == 3 for column in columns) else columns[:1]


def _shape_of(columns: Sequence[Column]) -> tuple[int, ...]:
    first = columns[0].net_shape
    return *first[:-1], sum(column.net_shape[-1] for column in columns)


def _columns_job(
    name: str, splits: Mapping[str, SplitShards], columns: Sequence[Column], targets: Column
) -> tuple[Job, dict[str, str]]:
    train, validation, test = splits[TRAIN], splits.get(VALIDATION), splits.get(TEST)
    classify, shape = targets.role is Role.LABEL, _shape_of(columns)
    field = is_field(shape, targets.net_shape)
    share: dict[str, Any] = {} if validation else {"validation_share": SHARE}
    common: dict[str, Any] = {"normalise": True} | ({} if classify else {"normalise_target": True})
    elsewhere = [phase for phase, split in ((Phase.kVal, validation), (Phase.kTest, test)) if split]
    batch = _rows(train, BATCH_SIZE, FIELD_VALUES if field else 0)
    inputs = _inputs(train, columns, batch, exclude=elsewhere, **share, **common)
    steps = train.batches(batch, **share)
    for phase, split in ((Phase.kVal, validation), (Phase.kTest, test)):
        if split:
            rows = _rows(split, EVALUATED, EVALUATED_VALUES if field else 0)
            inputs += _inputs(split, columns, rows, include=[phase], **common)
    first = source = inputs[0].name
    if len(columns) > 1:
        source = "stacked"
        inputs.append(Concate(source, [column.name for column in columns], concate_dim=1))
    if field:
        outputs = targets.num_classes if classify else targets.net_shape[-1]
        net = field_layers(shape, outputs or 1, classify=classify, source=source, answers=first)
    else:
        outputs = outputs_for(targets.num_classes if classify else None, targets.shape)
        net = layers_for(shape, outputs, classify=classify, target=targets.net_shape)
        if len(columns) > 1:
            net[-1] = type(net[-1])("loss", [net[-2].name, first])
    train_steps = max(EPOCHS * steps, LEAST_STEPS)
    metrics, best, why = _measures(train.manifest, targets, field=field)
    job = Job(
        name=name,
        layers=[*inputs, *net],
        updater=Adam(lr=0.001),
        train_steps=train_steps,
        disp_freq=max(1, min(steps, 100)),
        validate_freq=max(steps, 50),
        checkpoint_freq=max(steps, 500),
        metric=metrics,
    )
    if test:
        job.proto.test_freq = train_steps
    job.proto.early_stopping.patience = 10
    job.proto.keep_best = best
    factor = factor_of(train.manifest)
    factors = [factor.name] if factor else []
    if factors:
        kept = weighed(list(job.proto.neuralnet.layer), factors[0])
        del job.proto.neuralnet.layer[:]
        job.proto.neuralnet.layer.extend(kept)
    comments = _comments(job, splits, columns, targets, steps, factors)
    if why:
        comments["keep_best"] = f"{comments['keep_best']} {why}"
    if field:
        comments["neuralnet"] += (
            "\nConvolutions at several resolutions, joined with those of the same resolution: a U-Net."
        )
    return job, comments


def _measures(manifest: Manifest, targets: Column, *, field: bool) -> tuple[list[str], str, str]:
    """The metrics, the one of the best checkpoint, and why, if that needs saying."""
    if targets.role is not Role.LABEL:
        return ["mae", "r2"], "validate.loss", ""
    if field:
        return ["iou", "dice"], "validate.iou", ""
    rarest, share = _rarest(manifest, targets)
    classes = targets.num_classes or 1
    if classes == 1 or share >= min(RARE, 0.5 / classes):
        return ["f1"], "validate.accuracy", ""
    metrics = ["auc", "f1"] if classes == 2 else ["f1"]
    why = f"The class {rarest} is rare ({100 * share:.2g} % of the samples), so that accuracy would say little."
    return metrics, f"validate.{metrics[0]}", why


def _rarest(manifest: Manifest, labels: Column) -> tuple[str, float]:
    """The class with the fewest samples, and its share; of the first samples if there are many."""
    classes, shards = labels.num_classes or 1, ShardFolder(manifest)
    counts, left = np.zeros(classes, np.int64), COUNTED
    for index in range(len(manifest.shards)):
        values = shards.reader(index).column(labels.name)[:left].reshape(-1)
        counts += np.bincount(values[(values >= 0) & (values < classes)], minlength=classes)
        left -= len(values)
        if left <= 0:
            break
    rarest = int(counts.argmin())
    name = labels.classes[rarest] if isinstance(labels.classes, tuple) else str(rarest)
    return name, counts[rarest] / max(1, counts.sum())


def _rows(split: SplitShards, most: int, values: int) -> int:
    """Samples of a mini-batch: at most so many, and of fields at most so many values, 0 for any number."""
    total = sum(column.values for column in split.manifest.columns if column.role is Role.FEATURE)
    return min(most, split.manifest.total, max(1, values // total) if values else most)


def _inputs(split: SplitShards, columns: Sequence[Column], batch: int, **settings: Any) -> list[Any]:
    """The input layers of a split, one for each column; the first one has the labels or targets."""
    several = any(c.role is Role.FEATURE and c.name != columns[0].name for c in split.manifest.columns)
    made = []
    for number, column in enumerate(columns):
        own: dict[str, Any] = {"column": column.name} if several else {}
        if number:
            own["has_label"] = False
            settings.pop("normalise_target", None)
        name = column.name if len(columns) > 1 else "data"
        made.append(RecordInput(name, path=split.path, batchsize=batch, **own, **settings))
    return made


def _text_job(name: str, splits: Mapping[str, SplitShards], symbols: int) -> tuple[Job, dict[str, str]]:
    train, validation = splits[TRAIN], splits.get(VALIDATION)
    shortest = min(split.manifest.total for split in (train, validation) if split)
    steps = max(1, min(STEPS_IN_TIME, shortest // 2 - 1))

    def text(split: SplitShards, **phases: Any) -> CharRNN:
        batch = max(1, min(TEXT_ROWS, split.manifest.total // (steps + 1)))
        return CharRNN("data", path=split.path, batchsize=batch, unroll_len=steps, **phases)

    inputs = [text(train, exclude=[Phase.kVal] if validation else [])]
    batch = inputs[0].proto.char_rnn_conf.batchsize
    fields: dict[str, Any] = {}
    if validation:
        inputs.append(text(validation, include=[Phase.kVal]))
        fields = {"validate_freq": 500}
    job = Job(
        name=name,
        layers=[*inputs, *text_layers(symbols, HIDDEN_STATE)],
        updater=RMSProp(lr=0.002, rho=0.95, clip_low=-5, clip_high=5),
        alg="kBPTT",
        train_steps=TEXT_STEPS,
        disp_freq=100,
        checkpoint_freq=1000,
        unroll_len=steps,
        **fields,
    )
    if validation:
        job.proto.keep_best = "validate.loss"
    return job, {
        "name": f"{train.manifest.total:,} symbols, {symbols} different ones. The net predicts the next symbol.\n"
        "Train: singa-dask train JOB.   Write text: singa-dask sample JOB --checkpoint WORKSPACE.",
        "train_steps": f"Mini-batches of {batch} rows of {steps} symbols.",
        "validate_freq": "Measure the validation split, all of it, after so many steps.",
        "keep_best": "Keep the checkpoint with the smallest loss of the validation.",
        "clip_low": "Gradients over time can explode: cut them off.",
        "neuralnet": f"Symbols as one-hot vectors, a GRU with {HIDDEN_STATE} values of state, scores of all symbols.",
    }


def _comments(
    job: Job,
    splits: Mapping[str, SplitShards],
    features: Sequence[Column],
    targets: Column,
    steps: int,
    factors: Iterable[str],
) -> dict[str, str]:
    classify = targets.role is Role.LABEL
    manifest, proto = splits[TRAIN].manifest, job.proto
    answer = f"{targets.num_classes} classes" if classify else f"numbers: {_spell(targets.shape) or 'one'}"
    read = {targets.name, *factors, *(column.name for column in features)}
    also = [c.name for c in manifest.columns if c.role not in IDENTITY and c.name not in read]
    samples = "; ".join(f"{column.name!r}, {_spell(column.job_shape)} {column.dtype}" for column in features)
    maps = f" for each of {_spell(targets.shape)} positions" if targets.of_positions else ""
    first = (
        f"{manifest.total:,} samples: {samples}, to predict {targets.name!r}, {answer}{maps}.\n"
        "Train: singa-dask train JOB.   All settings: docs/job.md."
    )
    if also:
        first += f"\nNot read: {', '.join(also)}. Further input layers read them: store_conf {{ column: ... }}."
    what = "the training data's means and standard deviations, which checkpoints keep"
    return {
        "name": first,
        "train_steps": f"{proto.train_steps / steps:.0f} epochs of {steps} mini-batches.",
        "disp_freq": "Show the training metrics after so many steps.",
        "validate_freq": "Measure the validation samples, all of them, after so many steps.",
        "test_freq": "Measure the test samples, all of them, at the end.",
        "metric": "Measured of them besides the loss.",
        "early_stopping": "End after so many validations in a row without a smaller loss.",
        "keep_best": "Keep the checkpoint that is best by this measure.",
        "updater": "How gradients change the parameters.",
        "neuralnet": "The net. More workers: add cluster { nworkers_per_group: 4 }, or --cluster FILE.",
        "normalise": f"Subtract and divide by {what}.",
        "normalise_target": "The same for the targets; predictions and metrics are in their units.",
        "validation_share": "The share of the samples that is never trained on.",
        "column": "How much each sample counts.",
        "convolution_conf": "Change the number of filters, or add layers like this.",
        "innerproduct_conf": "Change the number of values, or add layers like this.",
    }


def commented(text: str, comments: Mapping[str, str]) -> str:
    """The text of a job with a comment above the first occurrence of each of these fields."""
    left, lines = dict(comments), []
    for line in text.splitlines():
        found = re.match(r"(\s*)(\w+)", line)
        if found and found[2] in left:
            lines += [f"{found[1]}# {part}" for part in left.pop(found[2]).splitlines()]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _spell(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
