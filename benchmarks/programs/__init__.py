"""Programs that are timed against each other: <benchmark>_<who>.py, started by the benchmarks themselves."""
