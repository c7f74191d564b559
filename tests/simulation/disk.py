"""The checkpoints of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from simulation.rules import Lineage
from singa_dask.memory import owner as owners
from singa_dask.memory.owner import CHECKPOINT, Owner, Version
from singa_dask.server.ledger import Ledger
from singa_dask.training.checkpoint import Found, model_of


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    path: str
    step: int
    values: np.ndarray
    ledger: Ledger

    @property
    def found(self) -> Found:
        """As training/checkpoint.py finds it."""
        found, version = Found(self.step, {}, {}, job=self.path, ledger=self.ledger), Version("", 0, self.step)
        where = owners.Saved(Owner(CHECKPOINT), version, (), model_of({}, {}), found, self.path)
        return replace(found, copies=(where,))


@dataclass
class Disk:
    """The checkpoints of a run. full: how many faults of the disk there are."""

    saved: list[Saved] = field(default_factory=list)
    full: int = 0

    def newest(self) -> Found | None:
        saved = max(self.saved, key=lambda saved: saved.step, default=None)
        return saved and saved.found

    def save(self, step: int, values: np.ndarray, ledger: Ledger, lineage: Lineage) -> None:
        """Save, unless the disk is full or an intact one is there: training/group_checkpoints.py only says so."""
        lineage.check_values(values, f"checkpoint {step}", complete=False)
        if not self.full and not any(saved.step == step for saved in self.saved):
            self.saved.append(Saved(f"step-{step}.h5", step, values, ledger))
