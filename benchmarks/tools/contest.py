"""Programs side by side: each in a process of its own, a few steps at a time in turn, compared pair by pair.

A program prints a JSON line when it is ready, runs N steps for every line "N" on its standard
input and answers with {"seconds": per step}; at the line "end" it prints its peak memory and leaves. One that cannot
take part on this machine says {"absent": why} in place of being ready.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

FOLDER = Path(__file__).parents[1]
# Settings of some machines that slow OpenBLAS down or speed it up; nobody gets them.
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
CHUNK_S = 0.25


class Absent(Exception):
    """A program cannot take part; says why."""


@dataclass
class Program:
    """One process. seconds: per step, one figure per round. result: what else it says at the end. done: steps so
    far."""

    name: str
    process: subprocess.Popen
    first_losses: list[float]
    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    result: Mapping[str, float] = field(default_factory=dict)
    chunk: int = 1
    done: int = 0

    @classmethod
    def start(
        cls,
        program: str,
        arguments: Sequence[str],
        threads: int,
        *,
        folder: Path = FOLDER,
        python: str = sys.executable,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Program:
        """Start programs/`program`.py of a folder with these arguments, on as many cores as it has threads. Raises
        Absent."""
        process = subprocess.Popen(
            [python, str(folder / "programs" / f"{program}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(threads) | dict(variables),
            preexec_fn=_pin(threads),
        )
        ready = read(process)
        if "absent" in ready:
            process.wait()
            raise Absent(ready["absent"])
        started = cls(program, process, ready["losses"])
        started.done = len(ready["losses"])
        started.chunk = max(1, min(200, round(CHUNK_S / started._run(3))))
        return started

    @property
    def median_ms(self) -> float:
        """Of a step."""
        return 1e3 * statistics.median(self.seconds)

    def play(self) -> None:
        """One round: a chunk of steps."""
        self.seconds.append(self._run(self.chunk))

    def end(self) -> None:
        """Ask for the peak memory and the result, and let the process leave."""
        self.result = self._ask("end")
        self.peak_mb = self.result["peak_mb"]
        self.process.wait(timeout=30)

    def _run(self, steps: int) -> float:
        self.done += steps
        return self._ask(str(steps))["seconds"]

    def _ask(self, line: str) -> Mapping:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return read(self.process)


def contest(programs: Sequence[Program], rounds: int, steps: int | None = None) -> None:
    """Let the programs take turns for `rounds` rounds, and end. steps: of each in all, those before included."""
    try:
        for number in range(rounds):
            for program in programs[:: -1 if number % 2 else 1]:
                if steps is not None:
                    program.chunk = (steps - program.done) // (rounds - number)
                program.play()
        for program in programs:
            program.end()
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()


def ratio(peer: Program, ours: Program) -> float:
    """Median over the rounds of peer time / our time."""
    return statistics.median(ratios(peer, ours))


def ratios(peer: Program, ours: Program) -> list[float]:
    """Of each round, peer time / our time."""
    return [p / o for p, o in zip(peer.seconds, ours.seconds, strict=True)]


def serve(
    step: Callable[[], float],
    losses: Sequence[float],
    result: Callable[[], Mapping[str, float]] = dict,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """The program's side: run `step` as often as told on standard input, and time it. result: see serve_turns.

    clock: of a single thread, time.process_time does not count what other programs run.
    """

    def turn(steps: int) -> float:
        began = clock()
        for _ in range(steps):
            step()
        return clock() - began

    serve_turns(turn, losses, result)


def serve_turns(
    turn: Callable[[int], float], losses: Sequence[float] = (), result: Callable[[], Mapping[str, float]] = dict
) -> None:
    """The program's side, where it times itself: turn(steps) returns the seconds that so many steps took.

    result: of all steps, computed at the end.
    """
    import resource

    print(json.dumps({"losses": list(losses)}), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"peak_mb": peak_mb, **result()}), flush=True)
            return
        print(json.dumps({"seconds": turn(int(line)) / int(line)}), flush=True)


def absent(why: str) -> NoReturn:
    """The program's side: it cannot take part."""
    print(json.dumps({"absent": why}), flush=True)
    raise SystemExit


def environment(threads: int) -> dict[str, str]:
    """The environment of every program, which imports from this folder's tools."""
    found = {key: value for key, value in os.environ.items() if key not in UNSET}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        found[key] = str(threads)
    return found


def read(process: subprocess.Popen) -> Mapping:
    """The next line of a program; what libraries say in between is passed on. Raises SystemExit where it ended."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("{"):
            return json.loads(line)
        print(line, end="", file=sys.stderr)
    raise SystemExit(f"{' '.join(map(str, process.args))} ended with {process.wait()}; see its message above.")


def _pin(threads: int) -> Callable[[], None]:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return lambda: os.sched_setaffinity(0, cores)
