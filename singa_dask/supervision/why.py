"""What limits a run, from its record: where the time of its workers goes, and what to change.

Something limits a run by its share of the loop of worker group 0: training steps, evaluations and checkpoints. Waiting
for other workers has one cause: cores that are shared, else a slow rank, else the network, else small steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import mean, median
from typing import Any

from singa_dask.job.job_pb2 import JobProto
from singa_dask.training.memory import format_nbytes

MOST = 3  # findings that are told
# Shares of the time from which on something limits a run.
_WAITING, _LOADING, _EVALUATING, _SAVING, _START = 0.3, 0.2, 0.25, 0.2, 0.5
_WORTH = 0.05  # of the whole time, from which on something is worth a sentence
_FASTER = 0.25  # by which others wait more than the slowest rank
_SLOW_GROUP = 0.6  # of the speed of the other groups
_WORKERS_PER_CORE = 1.5
_START_S = 1.0
# A network that is slower, and messages from this size on, show in the bytes per second.
_SLOW_BYTES_PER_S, _LARGE_NBYTES = 6e7, 1e5
_SHORT_STEP_S, _SMALL_ROWS = 1.5e-3, 16  # of a worker on its own
_STALE = 4.0


class Cause(Enum):
    """What can limit a run."""

    START = "start-up"
    EVALUATING = "evaluations"
    SAVING = "checkpoints"
    LOADING = "loading"
    CORES = "shared cores"
    SLOW_RANK = "a slow worker"
    NETWORK = "the network"
    SMALL_STEPS = "small steps"
    SERVERS = "servers"
    STALENESS = "staleness"


@dataclass(frozen=True)
class Finding:
    """share: of the time that it takes, about. text: a sentence, with figures and what to change."""

    cause: Cause
    share: float
    text: str


class _Group:
    """What the record tells of a worker group. Older records tell less."""

    def __init__(self, number: str, told: Mapping[str, Any]) -> None:
        self.number, self.ranks = number, max(1, len(told.get("wait", ())))
        self.steps, self.seconds = told.get("steps", 0), told.get("seconds", 0.0)
        self.evaluating_s, self.saving_s = told.get("evaluating_s", 0.0), told.get("saving_s", 0.0)
        self.wait: Sequence[float] = told.get("wait", ())
        self.loading: Sequence[float] = told.get("loading", ())
        self.rate, self.samples = told.get("samples_per_s", 0.0), told.get("samples", 0)
        self.began, self.exchange = told.get("began", 0.0), told.get("exchange", "")
        self.processes: Sequence[Mapping[str, Any]] = told.get("processes", ())
        self.server: Mapping[str, float] = told.get("server") or {}
        self.nbytes = sum(done["bytes"] for done in told.get("operations", {}).values()) / max(1, self.steps)

    @property
    def loop_s(self) -> float:
        return float(self.seconds + self.evaluating_s + self.saving_s)

    @property
    def step_s(self) -> float:
        return float(self.seconds / self.steps) if self.steps else 0.0

    @property
    def rows(self) -> float:
        """Samples of a step per worker."""
        return float(self.samples / self.steps / self.ranks) if self.steps else 0.0

    def host(self, rank: int) -> str:
        return f" on {self.processes[rank]['host']}" if rank < len(self.processes) else ""


def findings(summary: Mapping[str, Any], job: JobProto) -> list[Finding]:
    """What limits a run most, at most three, the largest first. summary: the contents of summary.json."""
    groups = [_Group(number, told) for number, told in summary["groups"].items()]
    lead = next((group for group in groups if group.number == "0"), None)
    if lead is None or not lead.loop_s:
        return []
    of_loop = [*_besides_steps(lead, job), *_loading(lead), *_waiting(groups, lead), *_servers(groups)]
    in_loop = min(1.0, lead.loop_s / summary["wall_s"]) if summary.get("wall_s") else 1.0
    scaled = [replace(finding, share=finding.share * in_loop) for finding in of_loop]
    found = [*_start(summary, lead), *(finding for finding in scaled if finding.share >= _WORTH), *_staleness(groups)]
    return sorted(found, key=lambda finding: -finding.share)[:MOST]


def verdict(summary: Mapping[str, Any], job: JobProto) -> str:
    """The findings as text; a sentence if there are none."""
    found = findings(summary, job)
    return " ".join(finding.text for finding in found) if found else _nothing(summary)


def summary_so_far(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is told of the groups of an active run by its lines of metrics.jsonl, in the form of summary.json."""
    lines: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["phase"] == "train" and "samples_per_s" in row:
            lines[row["group"]].append(row)
    return {"groups": {str(group): _so_far(of) for group, of in sorted(lines.items())}}


def _so_far(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def means(prefix: str) -> dict[str, float]:
        names = [name for name in rows[-1] if name.startswith(prefix)]
        return {name.removeprefix(prefix): mean(row.get(name, 0.0) for row in rows) for name in names}

    seconds = max(rows[-1]["time"] - rows[0]["time"], 1e-3)
    steps = rows[-1]["step"] - rows[0]["step"] if len(rows) > 1 else rows[-1]["step"]
    rate = mean(row["samples_per_s"] for row in rows)
    return {
        "steps": steps,
        "seconds": seconds,
        "samples": rate * seconds,
        "samples_per_s": rate,
        "wait": [*means("wait_rank").values()],
        "loading": [*means("loading_rank").values()],
        "server": means("server_"),
    }


def _start(summary: Mapping[str, Any], lead: _Group) -> Iterator[Finding]:
    if not (lead.began and summary.get("began") and summary.get("wall_s")):
        return
    seconds, wall_s = max(0.0, lead.began - summary["began"]), summary["wall_s"]
    share = seconds / wall_s
    if share >= _START and seconds >= _START_S:
        text = (
            f"Start-up took {seconds:.3g} of {wall_s:.3g} s: processes start, and on their first use kernels are "
            "compiled, once per machine; train longer in one run, and keep a Dask cluster running for several runs."
        )
        yield Finding(Cause.START, share, text)


def _besides_steps(lead: _Group, job: JobProto) -> Iterator[Finding]:
    evaluating, saving = lead.evaluating_s / lead.loop_s, lead.saving_s / lead.loop_s
    if evaluating >= _EVALUATING:
        given = {name: getattr(job, name) for name in ("test_freq", "validate_freq")}
        often = " and ".join(f"{name} ({value})" for name, value in given.items() if value) or "test_freq"
        text = (
            f"Evaluations took {evaluating:.0%} of the time ({lead.evaluating_s:.3g} s): raise {often}, or evaluate "
            "fewer mini-batches (test_steps, validate_steps)."
        )
        yield Finding(Cause.EVALUATING, evaluating, _percent(text))
    if saving >= _SAVING:
        text = (
            f"Checkpoints took {saving:.0%} of the time ({lead.saving_s:.3g} s): raise checkpoint_freq "
            f"({job.checkpoint_freq}), save by the clock (checkpoint_every), or write to a faster disk."
        )
        yield Finding(Cause.SAVING, saving, _percent(text))


def _loading(lead: _Group) -> Iterator[Finding]:
    share = max(lead.loading, default=0.0)
    if share >= _LOADING:
        text = (
            f"Workers wait for data {share:.0%} of the time: put the shards on a faster or local disk, store the data "
            "as they are read (float32 or uint8, not resized while training), give Dask workers more threads, or have "
            "the transform do less."
        )
        yield Finding(Cause.LOADING, share * lead.seconds / lead.loop_s, _percent(text))


def _waiting(groups: Sequence[_Group], lead: _Group) -> Iterator[Finding]:
    """The one cause of waiting for other workers."""
    of_steps = lead.seconds / lead.loop_s
    waiting = mean(lead.wait) if lead.wait else 0.0
    for finding in (*_cores(groups, waiting), *_slow(groups, lead)):
        yield Finding(finding.cause, finding.share * of_steps, finding.text)
        return
    per_second = lead.nbytes / (waiting * lead.step_s) if waiting and lead.step_s else 0.0
    small = f"a step takes {1e3 * lead.step_s:.3g} ms for {lead.rows:.3g} samples per worker"
    if lead.ranks > 1 and waiting >= _WAITING:
        share = f"Workers wait for each other {waiting:.0%} of the time"
        slow = lead.nbytes >= _LARGE_NBYTES and per_second < _SLOW_BYTES_PER_S
        if slow and lead.exchange != "shared memory":
            text = (
                f"{share}: a step sends {format_nbytes(lead.nbytes)} per worker at {format_nbytes(per_second)}/s; "
                "compress gradients (codec: kHalf or kTopK), use a faster network (`dask worker --interface`), larger "
                "mini-batches, or fewer workers."
            )
            yield Finding(Cause.NETWORK, waiting * of_steps, _percent(text))
        else:
            text = f"{share}: {small}; raise batchsize, or use fewer workers."
            yield Finding(Cause.SMALL_STEPS, waiting * of_steps, _percent(text))
    elif lead.ranks == 1 and 0 < lead.step_s <= _SHORT_STEP_S and lead.rows <= _SMALL_ROWS:
        text = f"Most of a step is its fixed cost: {small}; raise batchsize."
        yield Finding(Cause.SMALL_STEPS, _WAITING * of_steps, text)


def _cores(groups: Sequence[_Group], waiting: float) -> Iterator[Finding]:
    hosts: defaultdict[str, list[frozenset[int]]] = defaultdict(list)
    for group in groups:
        for process in group.processes:
            hosts[process["host"]].append(frozenset(process["cores"]))
    for host, cores in hosts.items():
        count = len(frozenset().union(*cores))
        if len(cores) >= _WORKERS_PER_CORE * count and len(cores) > count:
            text = (
                f"{len(cores)} workers share {count} core{'s' * (count > 1)} of {host} and take turns: start at most "
                f"{count} there, or use more machines."
            )
            yield Finding(Cause.CORES, max(waiting, 1 - count / len(cores)), text)
            return


def _slow(groups: Sequence[_Group], lead: _Group) -> Iterator[Finding]:
    if lead.ranks > 1 and len(lead.wait) == lead.ranks:
        slowest = min(range(lead.ranks), key=lead.wait.__getitem__)
        others = mean(share for rank, share in enumerate(lead.wait) if rank != slowest)
        if others - lead.wait[slowest] >= _FASTER:
            whoever = "The others wait" if lead.ranks > 2 else "The other worker waits"
            text = (
                f"{whoever} {others:.0%} of the time for rank {slowest}{lead.host(slowest)}, which waits "
                f"{lead.wait[slowest]:.0%}: look for other programs or a slower processor there, or leave it out."
            )
            yield Finding(Cause.SLOW_RANK, others - lead.wait[slowest], _percent(text))
    if len(groups) > 1:
        last = min(groups, key=lambda group: group.rate)
        others = median(group.rate for group in groups if group is not last)
        if 0 < last.rate < _SLOW_GROUP * others:
            text = (
                f"Worker group {last.number}{last.host(0)} makes {last.rate:,.0f} samples/s, and the others "
                f"{others:,.0f}: look for other programs or a slower processor there, or remove the group "
                "(`singa-dask leave`)."
            )
            yield Finding(Cause.SLOW_RANK, (1 - last.rate / others) / len(groups), text)


def _servers(groups: Sequence[_Group]) -> Iterator[Finding]:
    told = [group for group in groups if group.server]
    stall = mean(group.server.get("stall", 0.0) for group in told) if told else 0.0
    if stall < _WAITING:
        return
    update_s = mean(group.server.get("update_ms", 0.0) for group in told) / 1e3
    nbytes = mean(group.server.get("bytes", 0.0) for group in told)
    per_second = nbytes / update_s if update_s else 0.0
    elsewhere = any(group.server.get("elsewhere") for group in told)
    share = f"Workers wait for servers {stall:.0%} of the time"
    if elsewhere and nbytes >= _LARGE_NBYTES and per_second < _SLOW_BYTES_PER_S:
        text = (
            f"{share}: an update sends {format_nbytes(nbytes)} at {format_nbytes(per_second)}/s; compress gradients "
            "(codec: kHalf or kTopK), or use a faster network (`dask worker --interface`)."
        )
        yield Finding(Cause.NETWORK, stall, _percent(text))
    else:
        count = f"{len(groups)} worker group{'s' * (len(groups) > 1)}"
        text = (
            f"{share}: an update takes {1e3 * update_s:.3g} ms with {count}; use more servers (--servers) on cores of "
            "their own, larger mini-batches, or one_behind: true for servers on other machines."
        )
        yield Finding(Cause.SERVERS, stall, _percent(text))


def _staleness(groups: Sequence[_Group]) -> Iterator[Finding]:
    stale = max(groups, key=lambda group: group.server.get("staleness", 0.0))
    staleness = stale.server.get("staleness", 0.0)
    if staleness >= _STALE:
        text = (
            f"Gradients of worker group {stale.number} are computed with parameters that lack {staleness:.3g} updates "
            f"(at most {stale.server.get('staleness_max', 0):,.0f}), so that steps learn less: bound it "
            "(max_staleness), lower the learning rate, or use fewer groups of more workers."
        )
        yield Finding(Cause.STALENESS, 0.0, text)


def _nothing(summary: Mapping[str, Any]) -> str:
    lead = _Group("0", summary["groups"].get("0", {}))
    if not lead.loop_s:
        return "Nothing stands out: the record has no times of training steps."
    waits = mean(lead.wait) if lead.wait else 0.0
    computing = (1 - min(1.0, waits + max(lead.loading, default=0.0))) * lead.seconds / lead.loop_s
    return _percent(f"Nothing stands out: workers compute {computing:.0%} of the time.")


def _percent(text: str) -> str:
    return text.replace("%", " %")
