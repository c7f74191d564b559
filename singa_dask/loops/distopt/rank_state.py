"""What a rank keeps between the updates of a DistOpt, besides the parameters; for its state_dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singa_dask.errors import CheckpointError
from singa_dask.exchange.ranks import own_arrays
from singa_dask.layers.param import Param
from singa_dask.loops.distopt.updating import RankUpdate
from singa_dask.net.flat import FlatParams, check_names
from singa_dask.ops.arrays import on_host


class RankState:
    """The updater's state, and what codecs have held back of gradients.

    cut: where the buckets of the residuals begin.
    """

    def __init__(self, model: Any, update: RankUpdate) -> None:
        self.model, self.update = model, update
        self.cut: tuple[int, ...] = ()
        self._residual: np.ndarray | None = None
        self._owed: np.ndarray | None = None
        self._owed_to_own: np.ndarray | None = None  # held back by an earlier DistOpt, of what is split in this one

    def residuals(self, cut: tuple[int, ...], xp: Any = np) -> tuple[np.ndarray, np.ndarray]:
        """What was not sent, and what is owed, as arrays of `xp`. Where another cut changes owners, what is owed is
        sent again."""
        flat = self.model.net.flat
        if self._residual is None or self._owed is None:
            self._residual, self._owed = (np.zeros(flat.size, flat.values.dtype) for _ in range(2))
        elif cut != self.cut:
            self._residual += self._owed
            self._owed[...] = 0
        if not isinstance(self._residual, xp.ndarray):
            self._residual, self._owed = map(xp.asarray, (self._residual, self._owed))
        self.cut = cut
        return self._residual, self._owed

    def add_owed(self) -> None:
        """Add what is owed to split parameters to their gradients, once."""
        if self._owed_to_own is not None:
            self.model.net.own.grads += self.model.ops.asarray(self._owed_to_own)
            self._owed_to_own = None

    def saved(self) -> dict[str, Any]:
        """Copies by parameter name; all arrays are whole. Collective where the model is partitioned."""
        net, held = self.model.net, dict[str, dict[str, np.ndarray]]()
        for updater, flat in self.update.pairs:
            for name, array in updater.state.items():
                held.setdefault(name, {}).update(flat.named(self.model.ops.to_host(array).copy()))
        states = {name: self.model.ranks.whole(net.params, arrays) for name, arrays in held.items()}
        state: dict[str, Any] = {"updater": states, "residual": {}, "owed": {}, "cut": self.cut}
        if self._residual is not None and self._owed is not None:
            named = net.flat.named
            state |= {"residual": named(on_host(self._residual).copy()), "owed": named(on_host(self._owed).copy())}
        if self._owed_to_own is not None:
            pending = net.own.named(self._owed_to_own)
            state["residual"] |= {param.name: _whole_of(param, pending[param.name]) for param in net.own.params}
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what was saved, maybe of another partition. Collective where the model is partitioned.

        Raises CheckpointError where it is of another model or updater.
        """
        missing = [key for key in ("step", "updater", "residual", "owed", "cut") if key not in state]
        if missing:
            raise CheckpointError(
                f"the state of a DistOpt must have {', '.join(missing)}. It has: {', '.join(state)}."
            )
        net = self.model.net
        states = {name: own_arrays(net.params, arrays) for name, arrays in state["updater"].items()}
        for updater, flat in self.update.pairs:
            updater.load_state({name: flat.flattened(_some(flat, arrays)) for name, arrays in states.items()})
        self._load_residuals(state["residual"], state["owed"])
        self.cut = tuple(state["cut"])

    def _load_residuals(self, residual: Mapping[str, np.ndarray], owed: Mapping[str, np.ndarray]) -> None:
        """Those of what is split here become part of the next gradients."""
        net, ranks = self.model.net, self.model.ranks
        names = [param.name for param in net.params]
        self._residual = self._owed = self._owed_to_own = None
        if not any(ranks.numbers(bool(residual)) if net.partitioned else residual):
            return
        for given in (residual, owed):
            check_names(names, dict.fromkeys(names) | dict(given))

        def filled(given: Mapping[str, np.ndarray], flat: FlatParams) -> dict[str, np.ndarray]:
            dtype = flat.values.dtype
            return {p.name: given[p.name] if p.name in given else np.zeros(p.whole_shape, dtype) for p in flat.params}

        self._residual, self._owed = (net.flat.flattened(filled(given, net.flat)) for given in (residual, owed))
        sums = {name: array + filled(owed, net.own)[name] for name, array in filled(residual, net.own).items()}
        own = own_arrays(net.own.params, {name: ranks.sum(array) for name, array in sums.items()})
        self._owed_to_own = net.own.flattened(own) if own else None


def _some(flat: FlatParams, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {entry.name: arrays[entry.name] for entry in flat.entries}


def _whole_of(param: Param, own: np.ndarray) -> np.ndarray:
    """A whole array of a split parameter, zero outside this rank's shard."""
    assert param.shard is not None
    whole = np.zeros(param.whole_shape, own.dtype)
    param.shard.write(whole, own)
    return whole
