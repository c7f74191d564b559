"""Play many histories, and shrink those that break a rule.

python -m simulation --histories 10000        # seeds 0 to 9,999, on all cores
python -m simulation --seed 184 --trace       # one history again, with all that happened in it
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from simulation.batch import CHUNK, begin, played, shortest


def main() -> int:
    parser = argparse.ArgumentParser("simulation", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--histories", type=int, default=1, help="how many (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one per core")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.histories)
    began, how, broken = time.monotonic(), Counter[str](), []
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    processes = min(options.processes, len(chunks))
    with ProcessPoolExecutor(processes, get_context("spawn"), begin) as pool:
        for outcomes in pool.map(played, chunks):
            for seed, rule, runs, trace in outcomes:
                how.update(run.partition(":")[0] for run in runs)
                if rule:
                    broken.append(seed)
                    print(f"seed {seed}: {rule}", flush=True)
                if options.trace:
                    print(*trace, sep="\n")
        for text in pool.map(shortest, broken[:5]):
            print(f"\nThe shortest history that breaks a rule:\n{text}", flush=True)
    ends = ", ".join(f"{count} {name}" for name, count in how.most_common())
    print(f"{len(seeds)} histories in {time.monotonic() - began:.0f} s: runs that {ends}; {len(broken)} broke a rule")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
