"""The points on their clusters: each predicted from a profile of its cluster, and measured as a run of the product."""

from __future__ import annotations

import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.clusters import Driver, Silent, dask_cluster
from tools.network import Host, NotHere, joined_hosts
from tools.others import Others

from parts.plan_points import AUTO, DIM_1, Condition, Point
from singa_dask.errors import SingaError
from singa_dask.exchange.overlap import TURNS, WARM_UP
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.stores import store_of
from singa_dask.planning.costs import conditions
from singa_dask.planning.model import predict
from singa_dask.planning.partition import choose_partition
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.planning.profile import Curve, Profile
from singa_dask.profiling.cluster import medians
from singa_dask.training.prepare import prepare

PROFILE_S, AGAIN_S, LAYERS_S, RUN_S = 60.0, 20.0, 1.0, 120.0
ROUNDS = 3  # of each job; odd
SETTLED = WARM_UP + 2 * TURNS  # steps after which an exchange has chosen whether it overlaps
PROFILE_WITHIN_S = LAYERS_WITHIN_S = 300.0
INTERVALS, INTERVAL_S = 8, 0.12
GUESS_S = 0.03  # of a step, where no prediction says what to expect

Row = dict[str, Any]
Profiles = dict[str, list[Profile]]  # of each cluster, which is profiled again before every job
_PREDICTED = (
    "error",
    "unpredicted",
    "predicted_ms",
    "predicted_samples_per_s",
    "parts_ms",
    "hidden_ms",
    "overlaps",
    "extrapolated",
)


@dataclass
class Session:
    """A cluster in use. profiles: what is known of it, by name, and kept, each time that it was profiled. rate: of its
    network now."""

    driver: Driver
    hosts: Sequence[Host]
    profiles: Profiles
    folder: Path
    say: Callable[[str], None]
    rate: str = ""
    runs: int = 0

    def limit(self, condition: Condition) -> Profile:
        """Give the network the rate of this condition, and profile it once more. Layers do not depend on the network.

        Returns the medians of its profiles. Raises Unprofiled."""
        if condition.rate != self.rate:
            for host in self.hosts:
                host.limit(condition.rate, even=True)
            self.rate = condition.rate
        return self._profiled(condition.profiled)

    def _profiled(self, name: str) -> Profile:
        known = self.profiles.setdefault(name, [])
        began = time.monotonic()
        kernels = {key: curve for each in known[:1] for key, curve in each.curves.items() if key.startswith("sum ")}
        told = {
            "do": "profile",
            "budget_s": AGAIN_S if known else PROFILE_S,
            "known": Profile(curves=kernels).to_json(),
        }
        answer = self.driver.ask(told, PROFILE_WITHIN_S)
        if "error" in answer:
            raise Unprofiled(f"no profile: {answer['error']}")
        known.append(Profile.from_json(answer["profile"]))
        self.say(f"{name}: profiled in {time.monotonic() - began:.0f} s")
        return merged(known)

    def layers(self, jobs: Sequence[JobProto], machines: Machines) -> Profile:
        """What the layers of prepared jobs take now. Raises Unprofiled."""
        if not jobs:
            return Profile()
        answer = self.driver.ask(layers_line(jobs, machines), LAYERS_WITHIN_S)
        if "error" in answer:
            raise Unprofiled(f"the layers are not measured: {answer['error']}")
        return Profile.from_json(answer["profile"])


class Unprofiled(Exception):
    """A cluster cannot be profiled; says why."""


def merged(profiles: Sequence[Profile]) -> Profile:
    """The medians of profiles of one cluster."""
    made = replace(profiles[0], layers=[], curves={}, notes={})
    made.merge(medians(profiles))
    for name in made.curves:
        if name.startswith("loop "):
            made.curves[name] = Curve.middle(profile.curves[name] for profile in profiles if name in profile.curves)
    return made


def measure(
    points: Sequence[Point],
    jobs: Mapping[str, JobProto],
    profiles: Profiles,
    keep: Callable[[Row], None],
    say: Callable[[str], None],
) -> None:
    """Predict and measure all points. keep: is given each row as soon as it is there. profiles: what is known of the
    clusters, by name, to which what is measured is added. A cluster that is lost is started again for the next job."""
    for cluster, found in groupby(points, key=lambda point: point.condition.cluster):
        left = list(found)
        while left:
            try:
                with _session(*cluster, profiles, say) as session:
                    while left:
                        first = left[0]
                        batch = [p for p in left if (p.job, p.condition) == (first.job, first.condition)]
                        left = [p for p in left if p not in batch]
                        _measure_job(session, batch, jobs[first.job], keep)
            except (Silent, Unprofiled) as error:
                say(f"{error}; the cluster is started again")
            except NotHere as error:
                for point in left:
                    keep(row_of(point) | {"failed": str(error)})
                left = []


@contextmanager
def _session(workers: int, apart: bool, profiles: Profiles, say: Callable[[str], None]) -> Iterator[Session]:
    with ExitStack() as stack:
        hosts = stack.enter_context(joined_hosts(workers)) if apart else []
        driver = stack.enter_context(dask_cluster(workers, hosts))
        yield Session(driver, hosts, profiles, Path(stack.enter_context(TemporaryDirectory())), say)


def _measure_job(session: Session, points: Sequence[Point], job: JobProto, keep: Callable[[Row], None]) -> None:
    """The points of one job under one condition, in turns: the speed of a shared machine changes within seconds, and
    each round measures the layers anew, and every point. The model is given the medians of what the layers took."""
    machines = machines_of(points[0].condition)
    try:
        profile = session.limit(points[0].condition)
        made = _all_made(session, points, job, profile, machines)
    except Unprofiled as error:
        for point in points:
            keep(row_of(point) | {"failed": str(error)})
        return
    ready = {point: found for point, found in made.items() if not isinstance(found, str)}
    expected = {
        point: predicted(point, found, profile).get("predicted_ms", 1e3 * GUESS_S) for point, found in ready.items()
    }
    runs: dict[Point, list[Row]] = {point: [] for point in ready}
    layers = []
    try:
        for _ in range(ROUNDS):
            layers.append(session.layers(list(ready.values()), machines))
            for point, found in ready.items():
                runs[point].append(_run(session, found, expected[point] / 1e3))
                expected[point] = runs[point][-1].get("measured_ms", expected[point])
    except (Silent, Unprofiled) as error:
        for point in points:
            keep(row_of(point) | {"failed": str(error)})
        raise
    profile.merge(medians(layers))
    session.profiles[points[0].condition.profiled][-1].merge(medians(layers))
    for point, found in made.items():
        row = row_of(point)
        if isinstance(found, str):
            keep(row | {"failed": found})
        else:
            keep(with_error(row | predicted(point, found, profile) | _median_of(runs[point])))


def _all_made(
    session: Session, points: Sequence[Point], job: JobProto, profile: Profile, machines: Machines
) -> dict[Point, JobProto | str]:
    """The prepared job of each point, or why there is none. The partition that the model chooses rests on a profile of
    the job's layers."""
    made: dict[Point, JobProto | str] = {}
    for auto in (False, True):
        some = [point for point in points if (point.way.partition == AUTO) == auto]
        made |= {point: _made(point, job, profile, machines) for point in some}
        ready = [found for point in some if not isinstance(found := made[point], str)]
        profile.merge(session.layers(ready, machines))
    return made


def _median_of(rounds: Sequence[Row]) -> Row:
    """The round whose time is the median, with the times of all. If one failed, that one."""
    failed = [row for row in rounds if "measured_ms" not in row]
    if failed:
        return failed[0]
    ordered = sorted(rounds, key=lambda row: row["measured_ms"])
    return ordered[len(ordered) // 2] | {"rounds_ms": [row["measured_ms"] for row in rounds]}


def machines_of(condition: Condition) -> Machines:
    """What the model is told of the cluster. Hosts are pinned to cores in turns, and some share one."""
    cores = len(os.sched_getaffinity(0))
    if not condition.rate:
        return Machines(cores=cores, hosts=1)
    hosts = condition.workers
    own: float = cores // hosts or 1 / -(-hosts // cores)
    return Machines(cores=own, hosts=hosts, workers_per_host=1)


def layers_line(jobs: Sequence[JobProto], machines: Machines) -> dict[str, Any]:
    """What asks a driver to measure the layers of prepared jobs as their workers run them on these machines."""
    trials = []
    cores = max(1, int(machines.cores))
    for job in jobs:
        concurrency, threads = conditions(job, machines)
        trials.append(
            {"job": job.SerializeToString().hex(), "concurrency": min(cores, concurrency), "threads": threads}
        )
    return {"do": "layers", "trials": trials, "budget_s": LAYERS_S}


def _made(point: Point, job: JobProto, profile: Profile, machines: Machines) -> JobProto | str:
    """The prepared job of a point, or why there is none."""
    mine = JobProto.FromString(job.SerializeToString())
    mine.cluster.CopyFrom(point.way.topology.to_proto())
    if point.way.partition == DIM_1:
        mine.neuralnet.partition_dim = 1
    try:
        ready = prepare(Job.from_proto(mine)).job
        if point.way.partition == AUTO:
            ready = choose_partition(ready, profile, machines).job()
        return ready
    except (SingaError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"not prepared: {type(error).__name__}: {error}"


def row_of(point: Point) -> Row:
    """What names a point in the results."""
    topology = point.way.topology
    return {
        "key": point.key,
        "job": point.job,
        "condition": point.condition.name,
        "way": point.way.label,
        "strategy": topology.strategy.value,
        "partition": point.way.partition,
        "codec": topology.codec,
        "synchronous": topology.strategy.synchronous,
    }


def predicted(point: Point, job: JobProto, profile: Profile) -> Row:
    """What the model says of a prepared job. resolved: the job, where the model has chosen its partition."""
    said: Row = {}
    if point.way.partition == AUTO:
        said["resolved"] = zlib.compress(job.SerializeToString(), 9).hex()
    try:
        prediction = predict(Candidate(job, point.way.partition), profile, machines_of(point.condition))
    except (SingaError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return said | {"unpredicted": f"{type(error).__name__}: {error}"}
    return said | {
        "predicted_ms": round(1e3 * prediction.step_s, 3),
        "predicted_samples_per_s": round(prediction.samples_per_s, 1),
        "parts_ms": {name: round(1e3 * seconds, 3) for name, seconds in prediction.parts.items() if seconds},
        "hidden_ms": round(1e3 * prediction.hidden_s, 3),
        "overlaps": prediction.overlaps,
        "extrapolated": round(prediction.extrapolated, 3),
    }


def with_error(row: Row) -> Row:
    """error: of the predicted step time, as a share of the measured one."""
    if "predicted_ms" in row and "measured_ms" in row:
        row["error"] = round(row["predicted_ms"] / row["measured_ms"] - 1, 4)
    return row


def again(rows: Sequence[Row], points: Sequence[Point], jobs: Mapping[str, JobProto], profiles: Profiles) -> list[Row]:
    """The rows with predictions of this version of the model, from the profiles that were made then."""
    known = {point.key: point for point in points}
    made = {name: merged(found) for name, found in profiles.items()}
    found = []
    for row in rows:
        point = known.get(row["key"])
        if point is None or "measured_ms" not in row or point.condition.profiled not in profiles:
            found.append(row)
            continue
        profile = made[point.condition.profiled]
        if "resolved" in row:
            job: JobProto | str = JobProto.FromString(zlib.decompress(bytes.fromhex(row["resolved"])))
        else:
            job = _made(point, jobs[point.job], profile, machines_of(point.condition))
        assert not isinstance(job, str), job
        kept = {name: value for name, value in row.items() if name not in _PREDICTED}
        found.append(with_error(kept | predicted(point, job, profile)))
    return found


def _run(session: Session, job: JobProto, expected_s: float) -> Row:
    """Train the job for a few seconds. measured_ms: of a step, the median over intervals; quartiles_ms: of them.
    others_cores: cores that other processes used meanwhile."""
    mine = JobProto.FromString(job.SerializeToString())
    sync = mine.cluster.sync_freq
    mine.disp_freq = sync * max(1, round(INTERVAL_S / expected_s / sync))
    mine.train_steps = mine.disp_freq * (-(-SETTLED // mine.disp_freq) + INTERVALS)
    session.runs += 1
    folder = session.folder / str(session.runs)
    line = {"do": "train", "job": mine.SerializeToString().hex(), "folder": str(folder)}
    others = Others()
    answer = session.driver.ask(line, RUN_S)
    disturbed = round(others.cores, 2)
    if "error" in answer:
        return {"failed": answer["error"]}
    rows = [row for row in answer["rows"] if row["phase"] == "train"]
    return step_times(rows, batch_of(mine), mine.cluster.nworker_groups, mine.disp_freq) | {
        "run_s": round(answer["wall_s"], 1),
        "others_cores": disturbed,
    }


def batch_of(job: JobProto) -> int:
    """Rows of a mini-batch of a worker group."""
    return max(max(store_of(layer).batchsize) for layer in job.neuralnet.layer if not layer.srclayers)


def step_times(rows: Sequence[Mapping[str, Any]], batch: int, groups: int, every: int) -> Row:
    """From rows of metrics.jsonl, each of an interval of `every` steps of a group: those that began after the overlap
    was complete, and in which all groups were training."""
    counted = [row for row in rows if row["step"] - every >= SETTLED]
    of_group = {group: [row for row in counted if row["group"] == group] for group in range(groups)}
    if not all(of_group.values()):
        return {"failed": "no interval of a group was measured"}
    begin = max(found[0]["time"] for found in of_group.values())
    end = min(found[-1]["time"] for found in of_group.values())
    if groups > 1:
        of_group = {g: [row for row in found if begin <= row["time"] <= end] or found for g, found in of_group.items()}
    steps = {group: [batch / row["samples_per_s"] for row in found] for group, found in of_group.items()}
    rate = sum(batch / statistics.median(found) for found in steps.values())
    times = sorted(1e3 * seconds for found in steps.values() for seconds in found)
    quartiles = statistics.quantiles(times, n=4)[::2] if len(times) > 1 else [times[0]] * 2
    return {
        "measured_ms": round(1e3 * groups * batch / rate, 3),
        "quartiles_ms": [round(cut, 3) for cut in quartiles],
        "intervals": len(times),
        "samples_per_s": round(rate, 1),
    }
