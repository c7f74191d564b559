"""The first minutes on a machine with a GPU: what is there, whether the tests pass, what a training step takes.

python benchmarks/gpu/first_run.py a --results DIR                    # at most 330 s
python benchmarks/gpu/first_run.py b --results DIR                    # at most 300 s
python benchmarks/gpu/first_run.py a --results DIR --wheels WHEELS    # without a network: what is missing, as wheels

Part a measures, runs the GPU tests and times nets against PyTorch. Part b repeats the tests that failed, lets two
ranks share the GPU by NCCL, kills one of them, and checks the memory accesses of the kernels. Neither needs an
installed singa_dask, and this file needs nothing but Python. Each stage has a limit, ends with it, and does not
prevent the next one; a stage whose tools are missing is skipped. DIR receives first-run-a.json or first-run-b.json
with the machine and the stages, and of each stage its output and its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stages import FAILED, GRACE_S, LATE, PASSED, Missing, Stage, run_stage
from wheels import install

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMITS_S = {"a": 330.0, "b": 300.0}
# NCCL refuses ranks that share a GPU, unless it takes them for different hosts; these are joined by the loopback.
LOOPBACK = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
}
KERNEL_TESTS = "float32 and (convolution or pooling or embed or recurrent or attention)"
FACTS, INSTALL, INSTALL_S = "facts", "install", 30.0


def stages_of(part: str, results: Path, scratch: Path, jobs: int) -> list[Stage]:
    """The stages of a part, in their order."""
    tests = ["-m", "pytest", "-q", "--timeout", "100", "-o", f"cache_dir={results / 'pytest'}", "-n", str(jobs)]
    benchmarks = (HERE.parent,)
    testing = ("pytest", "pytest_timeout", "xdist", "cupy", "gpu")
    facts = Stage(FACTS, 20, [HERE / "facts.py", results / f"{FACTS}.json"])
    if part == "a":
        xml = ["--junitxml", results / "tests.xml"]
        return [
            facts,
            Stage("preflight", 30, [HERE / "preflight.py", "--json", results / "preflight.json"], ("cupy", "gpu")),
            Stage("tests", 90, [*tests, "-rf", "--maxfail", "40", *xml, "tests/gpu"], testing),
            Stage(
                "steps", 125, [HERE / "steps.py", "--json", results / "steps.json"], ("cupy", "gpu"), paths=benchmarks
            ),
            Stage(
                *("step-profile", 40, [HERE / "step_profile.py", "--json", results / "step-profile.json"]),
                ("cupy", "gpu"),
                paths=benchmarks,
            ),
        ]
    train = [
        "-m",
        "singa_dask",
        "train",
        "examples/digits/job.conf",
        "--set",
        "gpu=[0,0,0]",
        "--set",
        "train_steps=300",
    ]
    cluster = ["--cluster", "examples/clusters/allreduce.conf", "--workspace", scratch / "three-workers"]
    lost = [HERE / "lost_worker.py", "--json", results / "lost-worker.json"]
    sanitizer = ["--tool", "memcheck", "--error-exitcode", "9", "--log-file", results / "sanitizer.txt"]
    kernels = ["-m", "pytest", "-q", "-p", "without_pool", "-p", "no:cacheprovider", "-k", KERNEL_TESTS]
    sections = ["--clock-control", "none", "--section", "SpeedOfLight", "--section", "LaunchStats"]
    launched = ["-k", "regex:sum|im2col|cupy_copy", "-c", "8"]
    return [
        facts,
        Stage(
            *("failed-tests", 50, [*tests, "-rf", "--last-failed", "tests/gpu"], testing),
            skip=lambda: "" if failed_tests(results) else f"{results / 'pytest'} names no test that failed in part a",
        ),
        Stage(
            *("two-ranks", 40, [HERE / "two_ranks.py", "--json", results / "two-ranks.json"], ("cupy", "gpu")),
            variables=LOOPBACK,
        ),
        Stage("three-workers", 45, [*train, *cluster], ("cupy", "gpu", "sklearn")),
        Stage(
            *("lost-worker", 70, lost, ("cupy", "gpu", "sklearn")),
            paths=(HERE / "shared_gpu", *benchmarks),
            variables=LOOPBACK,
        ),
        Stage(
            *("memcheck", 45, [*kernels, "tests/gpu/test_ops.py"], (*testing, "compute-sanitizer")),
            prefix=["compute-sanitizer", *sanitizer],
            paths=(HERE,),
        ),
        Stage(*("profiled", 20, [HERE / "profiled.py"], ("cupy", "gpu", "ncu")), prefix=["ncu", *sections, *launched]),
    ]


def failed_tests(results: Path) -> list[str]:
    """The tests that failed last with these results, as pytest notes them."""
    try:
        return sorted(json.loads((results / "pytest" / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return []


class Part:
    """Runs the stages of a part, and writes after each of them what is known by then.

    limit_s: of the part; a stage ends with it. limits_s: of stages, by name, in place of their own.
    """

    def __init__(self, name: str, results: Path, limit_s: float, limits_s: dict[str, float]) -> None:
        self.name, self.results, self.limit_s, self.limits_s = name, results, limit_s, limits_s
        self.variables: dict[str, str] = {}
        self.stages: list[dict[str, Any]] = []
        self.machine: dict[str, Any] = {}
        self._began = time.monotonic()

    def install(self, wheels: Path, scratch: Path) -> None:
        """Have the stages use these wheels."""
        began, reason = time.monotonic(), ""
        try:
            limit_s = self.limits_s.get(INSTALL, INSTALL_S)
            self.variables |= install(scratch / "wheels", wheels, timeout_s=min(limit_s, self._left))
        except Exception as error:  # some stages may go without
            reason = f"{type(error).__name__}: {error}"
        status = FAILED if reason else PASSED
        self._note({"stage": INSTALL, "status": status, "reason": reason, "seconds": time.monotonic() - began})

    def run(self, stage: Stage) -> None:
        limit_s = min(self.limits_s.get(stage.name, stage.limit_s), self._left - GRACE_S)
        missing = Missing(self.machine)
        if limit_s <= 0:
            self._note({"stage": stage.name, "status": "skipped", "reason": f"the part's {self.limit_s:g} s are over"})
        elif reason := missing.reason(stage.needs) or stage.skip():
            self._note({"stage": stage.name, "status": "skipped", "reason": reason})
        else:
            log = self.results / f"{stage.name}.txt"
            outcome = run_stage(stage, limit_s, log, ROOT, self.variables)
            if stage.name == FACTS and outcome["status"] == PASSED:
                self.machine = json.loads((self.results / f"{FACTS}.json").read_text())
            self._note(outcome)

    @property
    def failed(self) -> bool:
        return any(stage["status"] in (FAILED, LATE) for stage in self.stages)

    @property
    def _left(self) -> float:
        return self.limit_s - (time.monotonic() - self._began)

    def _note(self, outcome: dict[str, Any]) -> None:
        outcome = {key: round(value, 1) if isinstance(value, float) else value for key, value in outcome.items()}
        self.stages.append(outcome)
        told = {"part": self.name, "limit_s": self.limit_s, "seconds": round(time.monotonic() - self._began, 1)}
        told |= {"machine": self.machine, "stages": self.stages}
        (self.results / f"first-run-{self.name}.json").write_text(json.dumps(told, indent=1) + "\n")
        seconds = f" after {outcome['seconds']} s" if "seconds" in outcome else ""
        print(f"{outcome['stage']}: {outcome['status']}{seconds}. {outcome.get('reason', '')}".rstrip(), flush=True)


def limit_of(text: str) -> tuple[str, float]:
    """STAGE=SECONDS"""
    name, _, seconds = text.partition("=")
    return name, float(seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=LIMITS_S)
    parser.add_argument("--results", type=Path, required=True, help="folder for the results; both parts share it")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of what this Python has not")
    parser.add_argument("--scratch", type=Path, help="folder for caches and runs (default: a temporary one)")
    parser.add_argument("--limit", type=float, metavar="S", help="of the part (default: 330 for a, 300 for b)")
    parser.add_argument("--stage-limit", type=limit_of, action="append", default=[], metavar="STAGE=S")
    parser.add_argument("--only", action="append", default=[], metavar="STAGE", help="may be repeated")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes for the tests")
    given = parser.parse_args(arguments)
    given.results.mkdir(parents=True, exist_ok=True)
    results = given.results.resolve()
    with tempfile.TemporaryDirectory(prefix="first-run-", ignore_cleanup_errors=True) as temporary:
        scratch = (given.scratch or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        stages = stages_of(given.part, results, scratch, given.jobs)
        known = {INSTALL, *(stage.name for stage in stages)}
        check_names(parser, known, [*given.only, *(name for name, _ in given.stage_limit)])
        part = Part(
            given.part, results, LIMITS_S[given.part] if given.limit is None else given.limit, dict(given.stage_limit)
        )
        part.variables |= variables_of(scratch)
        if given.wheels:
            part.install(given.wheels, scratch)
        for stage in stages:
            if not given.only or stage.name in (FACTS, *given.only):
                part.run(stage)
    return int(part.failed)


def check_names(parser: argparse.ArgumentParser, known: set[str], named: Iterable[str]) -> None:
    for name in named:
        if name not in known:
            parser.error(f"this part has no stage {name!r}. It has: {', '.join(sorted(known))}.")


def variables_of(scratch: Path) -> dict[str, str]:
    """Environment variables of all stages: caches in the scratch folder, and nothing is compiled for the CPU."""
    caches = {name: str(scratch / name.lower()) for name in ("CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "SINGA_DASK_CACHE")}
    return {**caches, "SINGA_DASK_KERNELS": "numpy", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main())
