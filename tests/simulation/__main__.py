"""Play many histories, and shrink those that break a rule.

python -m simulation --histories 10000              # seeds 0 to 9,999 and those of seeds.txt, on all cores
python -m simulation --histories 2500 --seed tree   # seeds that follow from the code, and those of seeds.txt
python -m simulation --seed 184 --trace             # one history again, with all that happened in it
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from functools import partial

from simulation.batch import CHUNK, failed, played, seed_of_tree, shortest, start

PLAYED_S = 900.0  # at most, by a process at a time


def main() -> int:
    parser = argparse.ArgumentParser("simulation", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seed", help='the first one, or "tree" (default: 0)')
    parser.add_argument("--histories", type=int, default=1, help="how many (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one per core")
    options = parser.parse_args()
    first = seed_of_tree() if options.seed == "tree" else int(options.seed or 0)
    seeds = [*range(first, first + options.histories)]
    also = [] if (options.seed or "").isdecimal() else [seed for seed in failed() if seed not in seeds]
    print(f"seeds {first} to {seeds[-1]}, and {len(also)} of seeds.txt", flush=True)
    seeds += also
    began, how, broken = time.monotonic(), Counter[str](), []
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with start(min(options.processes, len(chunks))) as pool:
        outcomes = pool.imap(partial(played, traced=options.trace), chunks)
        for _ in chunks:
            for seed, rule, runs, trace in outcomes.next(PLAYED_S):
                how.update(run.partition(":")[0] for run in runs)
                if rule:
                    broken.append(seed)
                    print(f"seed {seed}: {rule}", flush=True)
                if options.trace:
                    print(*trace, sep="\n")
        for text in pool.imap(shortest, broken[:5]):
            print(f"\nThe shortest history that breaks a rule:\n{text}", flush=True)
    print(
        f"{len(seeds)} histories in {time.monotonic() - began:.0f} s: {len(broken)} broke a rule; runs that", end=" "
    )
    print(*(f"{count} {name}" for name, count in how.most_common()), sep=", ")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
