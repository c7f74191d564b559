"""A profile: what the product's kernels, collectives, codecs, servers and loader take on some machine, as data."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from statistics import median, median_low
from typing import Any, TypeVar

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.planning.work import Work

FORMAT = 2
_Read = TypeVar("_Read", "Point", "LayerSample", "Work", "Profile")


@dataclass(frozen=True)
class Point:
    """What something of this size takes: elapsed seconds, and seconds of a core."""

    size: float
    seconds: float
    cpu: float = 0.0


@dataclass(frozen=True)
class Curve:
    """Time against size, by straight lines between the points; beyond them along the last line.

    >>> Curve((Point(0, 1.0), Point(10, 2.0))).seconds(20)
    3.0
    """

    points: tuple[Point, ...]

    @classmethod
    def of(cls, points: Iterable[Point]) -> Curve:
        """Of points in any order."""
        return cls(tuple(sorted(points, key=lambda point: point.size)))

    @classmethod
    def medians(cls, points: Iterable[Point]) -> Curve:
        """Of points of which several may have the same size: the medians of these, of an even number the smaller one
        of the two in the middle, as what disturbs a measurement makes it longer."""
        by_size: dict[float, list[Point]] = defaultdict(list)
        for point in points:
            by_size[point.size].append(point)
        return cls.of(
            Point(size, median_low(p.seconds for p in of), median_low(p.cpu for p in of))
            for size, of in by_size.items()
        )

    @classmethod
    def middle(cls, curves: Iterable[Curve]) -> Curve:
        """Of curves with as many points, whose sizes were measured too: the medians of the first points, and so on."""
        return cls.of(
            Point(*(median(getattr(point, name) for point in points) for name in ("size", "seconds", "cpu")))
            for points in zip(*(curve.points for curve in curves), strict=True)
        )

    def seconds(self, size: float) -> float:
        """Elapsed seconds."""
        return self._at(size, [point.seconds for point in self.points])

    def cpu(self, size: float) -> float:
        """Seconds of a core."""
        return self._at(size, [point.cpu for point in self.points])

    def _at(self, size: float, values: list[float]) -> float:
        sizes = [point.size for point in self.points]
        if len(sizes) == 1:
            return values[0] if sizes[0] == 0 else values[0] * max(1.0, size / sizes[0])
        i = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        slope = (values[i] - values[i - 1]) / (sizes[i] - sizes[i - 1])
        return max(values[i - 1] + slope * (size - sizes[i - 1]), min(values) if size < sizes[0] else 0.0)


@dataclass(frozen=True)
class LayerSample:
    """Seconds of a layer's forward and backward call. concurrency: processes that computed on the host at once.
    threads: of each of them."""

    work: Work
    forward: float
    backward: float
    concurrency: int = 1
    threads: int = 1


@dataclass
class Profile:
    """What is known of a cluster's machines, which are alike.

    host: name of one of them; cpu: its processor; cores: of a host. hosts: in the cluster that was measured.
    versions: of the libraries. notes: anything else, for display.
    layers: samples of layers, of any nets. curves: by name; sizes are bytes where nothing else is said:

        "all_gather machine 4"      collective, where the ranks are ("machine": on one host, "network": on a host each)
                                    and their number; the size is that of the whole buffer. Also reduce_scatter,
                                    all_reduce, all_to_all. cpu: of each rank while it waits beside a computing thread
        "barrier machine 4"         size 0
        "barrier shared 4"          seconds of a core that each rank computes before the barrier: what it takes besides
        "shared 4"                  elements of all parameters: the exchange in shared memory with an update by SGD
        "update kNesterov 2"        elements that the rule updates; the last number is the concurrency
        "sum 2"                     bytes of another rank's gradient that a rank adds, in shared memory; concurrency
        "encode kTopK 0.05 1"       elements; codec, sparsity (or "-") and concurrency. Also decode
        "round_trip machine 1"      an update to a server of this many bytes and its reply, without the update itself;
                                    last the number of clients at once. cpu: what it takes from a
                                    thread that computes beside it
        "serve machine 1"           the same; seconds and cpu are what it takes at the server
        "load 1"                    values of a mini-batch of a worker: seconds of a core in its loading threads;
                                    concurrency
        "loop 1"                    seconds of the passes of a step: what it takes besides them and the update, and by
                                    how much longer they take on average where a run interrupts them; concurrency
    """

    host: str = ""
    cpu: str = ""
    cores: int = 1
    hosts: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    layers: list[LayerSample] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)

    def numbers(self, prefix: str) -> list[int]:
        """The last numbers of the curves' names that are `prefix` before it, ascending."""
        parts = (name.rpartition(" ") for name in self.curves)
        return sorted(int(number) for before, _, number in parts if before == prefix)

    def merge(self, other: Profile) -> None:
        """Add what another profile of the same machines has measured, which replaces what is here."""
        known = {(s.work, s.concurrency, s.threads): s for s in (*self.layers, *other.layers)}
        self.layers = list(known.values())
        self.curves |= other.curves
        self.notes |= other.notes

    def to_json(self) -> str:
        """As text; `from_json` reads it."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Raises ConfigError where the text is not a profile of this version."""
        try:
            data: Mapping[str, Any] = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(data["format"])
            if not isinstance(data["layers"], list):
                raise TypeError(data["layers"])
            samples = [{**sample, "work": _checked(Work(**sample["work"]))} for sample in data["layers"]]
            layers = [_checked(LayerSample(**sample)) for sample in samples]
            curves = {name: _curve(name, curve["points"]) for name, curve in data["curves"].items()}
            rest = {k: v for k, v in data.items() if k not in ("format", "layers", "curves")}
            read = _checked(cls(layers=layers, curves=curves, **rest))
            if min(read.cores, read.hosts) < 1:
                raise ValueError(f"{read.cores} cores, {read.hosts} hosts")
            return read
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            hint = "Run `singa-dask profile` again."
            raise ConfigError(Problem("profile", "is not a profile of this version", repr(error), hint)) from error


def _curve(name: str, points: Iterable[Mapping[str, Any]]) -> Curve:
    curve = Curve.of(_checked(Point(**point)) for point in points)
    if not curve.points or len({point.size for point in curve.points}) < len(curve.points):
        raise ValueError(f"{name}: needs points of distinct sizes")
    return curve


def _checked(read: _Read) -> _Read:
    """Raises ValueError unless every field has the type of its annotation and numbers are finite."""
    types: dict[str, Any] = {"float": (float, int), "int": int, "str": str, "bool": bool, "Work": Work}
    for each in fields(read):
        value, name = getattr(read, each.name), str(each.type)
        wanted = types.get(name, dict if name.startswith("dict") else list)
        wrong = not isinstance(value, wanted) or (isinstance(value, bool) and name != "bool")
        if wrong or (name in ("float", "int") and not -inf < value < inf):
            raise ValueError(f"{each.name}: {value!r}")
    return read


def rule_name(rule: UpdaterProto) -> str:
    """The rule in the name of a curve: a type, or "module:Class"."""
    return rule.user_type or UpdaterProto.UpdaterType.Name(rule.type)


def coding_name(codec: str, sparsity: float | None) -> str:
    """The codec and its sparsity in the name of a curve.

    >>> coding_name("kTopK", 0.05), coding_name("kHalf", None)
    ('kTopK 0.05', 'kHalf -')
    """
    return f"{codec} {'-' if sparsity is None else f'{sparsity:g}'}"
