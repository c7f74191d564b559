"""The events of a run of 600 steps by three workers, as a display gets them."""

START = {"kind": "start", "group": 0, "groups": 1, "step": 0, "steps": 600, "batch": 96, "ranks": 3, "exchange": "MPI"}
TRAIN = {
    "kind": "metrics",
    "group": 0,
    "phase": "train",
    "step": 50,
    "metrics": {"loss": 0.25, "accuracy": 0.9},
    "samples_per_s": 12_345.6,
    "wait": [0.02, 0.1, 0.3],
    "loading": [0.0, 0.0, 0.05],
}
PROGRESS = {**TRAIN, "kind": "progress"}
TEST = {"kind": "metrics", "group": 0, "phase": "test", "step": 600, "metrics": {"loss": 0.1, "accuracy": 0.98}}
SERVER = {"staleness": 1.04, "staleness_max": 3, "update_ms": 3.21, "stall": 0.04, "bytes": 4096}
