"""The update of a rank under DistOpt: of the replicated parameters and its shards of split ones, or of one parameter
at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.exchange.clipping import norm_clip
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.job.evaluations import plateaus
from singa_dask.job.job_pb2 import UpdaterProto
from singa_dask.layers.param import Param
from singa_dask.loops.distopt.recorded import Recorded
from singa_dask.net import Net
from singa_dask.net.flat import Joined, layout
from singa_dask.tensors.tensor import Tensor
from singa_dask.updaters import EMA, Updater, make_updater


def updater_message(updater: Any) -> UpdaterProto:
    """The message of an updater, of singa_dask.updaters or singa_dask.opt.

    Raises ConfigError for anything else, and for one that follows evaluations.
    """
    proto = getattr(updater, "proto", updater)
    if not isinstance(proto, UpdaterProto):
        raise ConfigError(
            Problem("updater", "must be an updater", repr(updater), "For example SGD(lr=0.1, momentum=0.9).")
        )
    if any(plateaus(proto.learning_rate)):
        message, hint = "follows the evaluations of a job, which this loop is not", "Use another schedule."
        raise ConfigError(Problem("updater.learning_rate", message, "ReduceOnPlateau", hint))
    return proto


class RankUpdate:
    """Updaters of one message, and the parameters of each: `pairs`.

    Raises ConfigError where the updater does not suit the net.
    """

    def __init__(self, proto: UpdaterProto, net: Net | Recorded, ops: Any, executor: CollectiveExecutor) -> None:
        self._proto, self._net, self._executor = proto, net, executor
        self._clip = norm_clip(proto, net.flat, net.own, ops)
        self.pairs = [(make_updater(proto, ops), flat) for flat in (net.flat, net.own)]
        for updater, flat in self.pairs:
            updater.check_fits([param.name for param in net.params], [param.name for param in net.own.params])
            updater.bind(flat.entries, 0, flat.size)

    def apply(self, step: int, unused: Collection[str] = ()) -> None:
        """Update all parameters by their gradients, which are summed. unused: names of those that stay as they are,
        with their states. Collective."""
        self._start_averages(step)
        self._clip_norm()
        for updater, flat in self.pairs:
            if flat.size:
                arrays = [flat.values, *(array for name, array in updater.state.items() if name != EMA)]
                places = [slice(entry.start, entry.stop) for entry in flat.entries if entry.name in unused]
                kept = [(array[place], array[place].copy()) for array in arrays for place in places]
                updater.update(step, flat.values, flat.grads)
                for view, before in kept:
                    view[...] = before

    @contextmanager
    def averaged(self, step: int) -> Iterator[None]:
        """Inside, the net has the moving averages of its parameters after so many steps."""
        if not self._proto.ema_decay:
            message, hint = "keeps no moving averages of the parameters", "Make it with ema_decay=0.999."
            raise ConfigError(Problem("updater.ema_decay", message, "0", hint))
        self._start_averages(step)
        kept = [flat.values.copy() for _, flat in self.pairs]
        for updater, flat in self.pairs:
            flat.values[...] = updater.state[EMA]
        try:
            yield
        finally:
            for (_, flat), values in zip(self.pairs, kept, strict=True):
                flat.values[...] = values

    def _start_averages(self, step: int) -> None:
        for updater, flat in self.pairs if step == 0 else ():
            updater.start(flat.values)

    def _clip_norm(self) -> None:
        """Scale the gradients to the updater's `clip_norm`, if their norm is larger."""
        flat, own, clip = self._net.flat, self._net.own, self._clip
        if clip is None:
            return
        gradients, parts = Joined(flat.grads, own.grads), (slice(0, flat.size), slice(flat.size, flat.size + own.size))
        common, shards = (clip.squares(gradients, part) for part in parts)
        scale = self._executor.run(clip.scale, self._executor.comm, shards, common)
        for part in parts:
            clip.apply(scale, gradients, part)


class UpdatesApart:
    """Updaters of one message, one for each parameter, which are updated one at a time."""

    def __init__(self, proto: UpdaterProto) -> None:
        self._proto = proto
        self._updaters: dict[Param, tuple[Updater, int]] = {}  # and how many updates each has made

    def update(self, p: Tensor, g: Tensor, ranks: int) -> None:
        """w = updater(w, g / ranks).

        Raises ConfigError for an updater with clip_norm, and for what is no parameter.
        """
        if p.param is None:
            hint = "Make it with stores_grad=True, or write to its data yourself."
            raise ConfigError(Problem("p", "is not a parameter", repr(p), hint))
        if self._proto.clip_norm:
            message, hint = "needs the gradients of all parameters", "Call opt.backward_and_update(loss)."
            raise ConfigError(Problem("updater.clip_norm", message, str(self._proto.clip_norm), hint))
        param, ops = p.param, p.device.ops
        updater, made = self._updaters.get(param, (None, 0))
        values, gradient = param.value.reshape(-1), g.array.reshape(-1) / ranks
        if updater is None:
            updater = make_updater(self._proto, ops)
            updater.bind(layout([param]), 0, values.size)
            updater.start(values)
        updater.update(made, values, gradient)
        param.versions[0] += 1
        self._updaters[param] = updater, made + 1
