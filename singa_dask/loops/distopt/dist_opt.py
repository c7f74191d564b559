"""An updater over all ranks of a hand-written training loop: Apache SINGA's DistOpt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from singa_dask.comm import Communicator
from singa_dask.comm.codecs import Codec, Half, Threshold, TopK
from singa_dask.comm.codecs.on_device import on_device
from singa_dask.comm.shared_memory import form_shared_flat
from singa_dask.errors import ConfigError, Problem
from singa_dask.exchange import Bucket, BucketExchange, FullExchange, SharedExchange
from singa_dask.exchange.buckets import fused_buckets
from singa_dask.exchange.coded import CodedSums
from singa_dask.exchange.pipeline import GradientPipeline
from singa_dask.exchange.ranks import Ranks
from singa_dask.exchange.staging import InPlace, staging_of
from singa_dask.inference.loss import TrainingLoss
from singa_dask.inference.model import Model
from singa_dask.layers.param import Param
from singa_dask.loops.distopt.comms import RankComms, rank_on_machine
from singa_dask.loops.distopt.nccl_id import NcclIdHolder, joined
from singa_dask.loops.distopt.rank_state import RankState
from singa_dask.loops.distopt.recorded import Recorded, RecordedLoss
from singa_dask.loops.distopt.settings import THRESHOLD, Settings
from singa_dask.loops.distopt.stages import SumStages
from singa_dask.loops.distopt.updating import RankUpdate, UpdatesApart, updater_message
from singa_dask.loops.distopt.worlds import world
from singa_dask.net import Net
from singa_dask.net.flat import FlatParams
from singa_dask.tensors.gradients import tape_of
from singa_dask.tensors.state import group_of, rank
from singa_dask.tensors.tensor import Tensor


class DistOpt:
    """Every rank holds the whole model and updater and applies the same sum of gradients, so that all stay identical.

        opt = DistOpt(SGD(lr=0.005, momentum=0.9), model)
        x, y = data_partition(x, y, opt.rank_in_global, opt.world_size)
        for ...:
            loss = model(x[rows], y[rows])
            opt.backward_and_update(loss)

    Collective, as are all its methods and training calls of the model: all ranks make them in the same order.

    updater: of singa_dask.updaters or singa_dask.opt, or its message. model: passed to `synch`; without one, the
    parameters from which the first loss was computed on tensors (singa_dask.autograd). comm: of the ranks; by default
    the MPI world of mpiexec or `launch`, in other processes a group of one. nccl_id, gpu_num, gpu_per_node: of
    processes that multiprocessing started, what they have in common, the number of this one, and how many there are;
    from SINGA 3.0 on, the last two are called local_rank and world_size. Losses divide by the rows of all ranks, so
    the sum is the gradient of the mean, even of unequal shares.

    threshold, clipping, clip_Value, spars, topK, corr: what the methods below take if a call does not say otherwise.

    world_size, rank_in_global, rank_in_local: number of ranks, this rank, and this rank on its machine; from SINGA 3.0
    on, the last two are called global_rank and local_rank. step: updates made. Bytes and seconds by operation:
    comm.nbytes, comm.seconds, and device_comm.nbytes of what travels from GPU to GPU. Buckets are sent during the
    backward pass.

    A model with `partition_dim: 1` is partitioned over the ranks (see Model). Each rank updates its shards of split
    parameters, which are never sent; all else is as before. Layers exchange through group.comm.
    """

    def __init__(
        self,
        updater: Any,
        model: Model | None = None,
        comm: Communicator | None = None,
        *,
        nccl_id: NcclIdHolder | None = None,
        gpu_num: int | None = None,
        gpu_per_node: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        threshold: int = THRESHOLD,
        clipping: bool = False,
        clip_Value: float = 100,
        spars: float = 0.05,
        topK: bool = False,
        corr: bool = True,
    ) -> None:
        if nccl_id is not None:
            number = gpu_num if local_rank is None else local_rank
            comm = joined(nccl_id, number, gpu_per_node if world_size is None else world_size)
        self.comm = self.communicator = world() if comm is None else comm
        self._settings = Settings(threshold, clipping, clip_Value, spars, topK, corr)
        self.world_size, self.rank_in_global = self.comm.size, self.comm.rank
        self.rank_in_local = rank_on_machine(self.comm)
        self.global_rank, self.local_rank = self.rank_in_global, self.rank_in_local
        if self.world_size > 1:
            rank.set(self.rank_in_global)  # whose rows layers draw masks for
        self.step = 0
        self.model: Any = None  # a Model, or Recorded
        self._formed: RankState | None = None
        self._loaded: Mapping[str, Any] | None = None  # the state of a model that is not known yet
        self._proto = updater_message(updater)
        self._apart = UpdatesApart(self._proto)
        self._comms = RankComms(self.comm)
        self._executor = self._comms.executor
        group_of.set(self._comms.group_of)
        self._shared: tuple[np.ndarray, list[np.ndarray]] | None = None  # the sum, and every rank's gradients
        self._in_use: tuple[Any, SumStages, GradientPipeline] | None = None  # with the settings it was made for
        if model is not None:
            self.synch(model)

    def synch(self, model: Model | Recorded) -> None:
        """Broadcast rank 0's parameters and step. The first model is the one that is trained.

        Raises ConfigError for another model, and where the ranks' models differ.
        """
        if self.model is None:
            self._form_for(model)
        elif model is not self.model:
            hint = "Make a DistOpt for each model."
            raise ConfigError(Problem("model", "this DistOpt trains another one", repr(model), hint))
        values = self._host(model.net.flat.values)
        self._executor.run(self.comm.broadcast, values)
        model.net.flat.values[...] = model.ops.asarray(values)
        step = np.array([self.step])
        self._executor.run(self.comm.broadcast, step)
        self.step = model.number = int(step[0])
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self.load_state_dict(loaded)

    def all_reduce(self, array: Any) -> Any:
        """The sum over all ranks of their arrays or tensors, of one shape and dtype, in place; also returned.

        Of anything else, such as a number, the sum is a new array.
        """
        total = self._comms.sum_in_place(array.array if isinstance(array, Tensor) else array)
        return array if total is None else total

    def wait(self) -> None:
        """Return when all operations of this rank have ended. They have when their calls return."""

    def update(self, p: Tensor, g: Tensor) -> None:
        """w = updater(w, g / world_size): one parameter, by the sum over the ranks of their gradients.

        For loops of one's own: for p, g in autograd.backward(loss): opt.update(p, opt.all_reduce(g)). Raises
        ConfigError for an updater with clip_norm, which needs all gradients at once, and for what is no parameter.
        """
        self._apart.update(p, g, self.world_size)

    def backward_and_update(self, loss: TrainingLoss | Tensor, threshold: int | None = None) -> None:
        """w = update(w, sum of gradients): the gradients of all ranks, in full.

        threshold: parameters of more elements travel alone, smaller ones together until they are more. Raises
        ConfigError, TrainingError for a loss that cannot go backward, ClusterError where a rank is lost.
        """
        self._update(self._given(loss), self._settings.of(threshold=threshold).threshold, ("full",), self._full)

    __call__ = backward_and_update

    def backward_and_update_half(
        self,
        loss: TrainingLoss | Tensor,
        threshold: int | None = None,
        clipping: bool | None = None,
        clip_Value: float | None = None,
    ) -> None:
        """As backward_and_update, with float16 on the wire, both ways: half the bytes.

        clipping: first, the gradient of the mean over own rows is clipped to [-clip_Value, clip_Value]; for a split
        parameter, which is not sent, that of the mean over the rows of all ranks.
        """
        told = self._settings.of(threshold=threshold, clipping=clipping, clip_Value=clip_Value)
        if told.clipping and not told.clip_Value > 0:
            raise ConfigError(Problem("clip_Value", "must be above 0", str(told.clip_Value), "100 is the default."))

        def coded(buckets: Sequence[Bucket], dtype: Any) -> BucketExchange:
            comm, codec = self._coded(Half(), dtype)
            return CodedSums(comm, buckets, codec, dtype)

        clip = told.clip_Value if told.clipping else None
        self._update(self._given(loss), told.threshold, ("half",), coded, clip)

    def backward_and_partial_update(self, loss: TrainingLoss | Tensor, threshold: int | None = None) -> None:
        """Every rank applies its own gradients; then one chunk of the parameters becomes its mean over the ranks.

        Chunks take turns, one per step; they have at most `threshold` elements, and at most 1 / world_size of all. The
        ranks' models differ in between: `synch` makes them equal. The gradients of split parameters are those of the
        rows of all ranks.
        """
        threshold = self._settings.of(threshold=threshold).threshold
        net = self._backward(self._given(loss), None, own_mean=True)
        self._apply()
        if self.world_size > 1:
            chunks = max(self.world_size, -(-net.flat.size // threshold))
            chunk = (self.step - 1) % chunks
            some = net.flat.values[net.flat.size * chunk // chunks : net.flat.size * (chunk + 1) // chunks]
            self._executor.run(self._comms.average, some, self._ops)

    def backward_and_sparse_update(
        self,
        loss: TrainingLoss | Tensor,
        threshold: int | None = None,
        spars: float | None = None,
        topK: bool | None = None,
        corr: bool | None = None,
    ) -> None:
        """As backward_and_update, with only the elements of largest magnitude on the wire, both ways.

        topK: the share `spars` of them; else those above `spars` in the gradient of the mean over a rank's own rows:
        it means the same for any number of ranks. corr: what does not travel is kept as a residual and added to the
        gradients of the next step; else it is dropped. See exchange.coded.CodedSums.
        """
        told = self._settings.of(threshold=threshold, spars=spars, topK=topK, corr=corr)
        # The gradients that travel are of the mean over the rows of all ranks.
        given = TopK(told.spars) if told.topK else Threshold(told.spars / self.world_size)

        def coded(buckets: Sequence[Bucket], dtype: Any) -> BucketExchange:
            cut, (comm, codec) = tuple(bucket.start for bucket in buckets), self._coded(given, dtype)
            residual, owed = self._state.residuals(cut, codec.xp) if told.corr else (None, None)
            statistics = self._flat.places(lambda entry: entry.statistic)
            return CodedSums(comm, buckets, codec, dtype, residual=residual, owed=owed, uncoded=statistics)

        key = "sparse", told.spars, told.topK, told.corr
        self._update(self._given(loss), told.threshold, key, coded)

    def _given(self, loss: TrainingLoss | Tensor) -> TrainingLoss | RecordedLoss:
        """The loss of a model. The first loss of tensors makes one of the layers from which it was computed."""
        if not isinstance(loss, Tensor):
            return loss
        recorded = tape_of(loss)
        if self.model is None:
            self.synch(Recorded(recorded))
        if not isinstance(self.model, Recorded):
            raise ConfigError(Problem("loss", "is of tensors, but this DistOpt trains a Model", repr(loss)))
        return self.model.loss(recorded)

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has the moving averages of its parameters: `with opt.averaged(): model.predict(x)`.

        Raises ConfigError where the updater keeps none (`ema_decay`).
        """
        return self._state.update.averaged(self.step)

    def state_dict(self) -> dict[str, Any]:
        """This rank's step, updater state and residuals, by parameter name; copies. Every rank saves its own, beside
        `model.state_dict()`. All arrays are whole. Collective where the model is partitioned.
        """
        return {"step": self.step, **self._state.saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this state, which may be of another partition; without residuals also of another number of
        ranks. Collective where the model is partitioned.

        In a loop over tensors, which makes its model with the first loss, it takes effect then. Raises CheckpointError
        where it is of another model or updater.
        """
        if self._formed is None:
            self._loaded = state
            return
        self._state.load(state)
        self._in_use = None
        self.step = self.model.number = int(state["step"])

    def _form_for(self, model: Model | Recorded) -> None:
        """Check that all ranks have this model, and share memory with them where that is possible. Collective."""
        self._comms.form(model.ops)
        group_of.set(self._comms.group_of)
        model.spread(Ranks(self._executor))
        self.model = model
        net, flat = model.net, model.net.flat
        self._formed = RankState(model, RankUpdate(self._proto, net, model.ops, self._executor))
        if self._comms.shares:
            self._shared = form_shared_flat(self.comm, flat.size, flat.grads.dtype)
        if self._shared is not None:
            flat.move(flat.values, self._shared[1][self.rank_in_global])
        self.group = self._comms.group(model.ops, apart=model.partitioned)
        model.join(self.group)

    def _coded(self, codec: Codec, dtype: Any) -> tuple[Communicator, Codec]:
        """What carries gradients of this type, and encodes them: from GPU to GPU only those of float32."""
        if self._comms.device is None or np.dtype(dtype) != np.float32:
            return self.comm, codec
        return self._comms.device, on_device(codec, self._ops)

    def _full(self, buckets: Sequence[Bucket], dtype: Any) -> BucketExchange:
        if self._shared is None:
            return FullExchange(self._comms.carrier, buckets)
        return SharedExchange(self.comm, buckets, self._shared[1])

    def _staging(self, exchange: BucketExchange) -> InPlace:
        """Where the exchange finds gradients and leaves their sum."""
        grads = self._flat.grads
        if isinstance(exchange, SharedExchange):
            assert self._shared is not None
            return InPlace(grads, self._shared[0])
        on_device = self._comms.device is not None and exchange.comm is self._comms.device
        return staging_of(self._ops, grads, grads, on_device=on_device)

    @property
    def device_comm(self) -> Communicator | None:
        """Between the GPUs of the ranks; None where gradients travel through the host."""
        return self._comms.device

    @property
    def overflows(self) -> int:
        """Values so far that the codec in use could not hold and sent as its largest; float16: 65504."""
        return 0 if self._in_use is None else self._in_use[1].exchange.overflows

    @property
    def _state(self) -> RankState:
        if self._formed is None:
            hint = "Pass it, DistOpt(updater, model), or call synch(model)."
            raise ConfigError(Problem("model", "this DistOpt has none", hint=hint))
        return self._formed

    @property
    def _net(self) -> Net:
        return self._state.model.net

    @property
    def _flat(self) -> FlatParams:
        return self._net.flat

    def _update(
        self,
        loss: TrainingLoss | RecordedLoss,
        threshold: int,
        key: tuple[Any, ...],
        make: Callable[[Sequence[Bucket], Any], BucketExchange],
        clip: float | None = None,
    ) -> None:
        """Backward, with every bucket sent as soon as it is complete; then the update by the sum."""
        flat, own = self._flat, self._net.own
        complete = own if self.world_size > 1 else flat
        if self.world_size == 1:
            self._backward(loss, None)
        else:
            stages, pipeline = self._pipeline((*key, threshold), threshold, make)
            stages.clip = None if clip is None else clip * loss.rows / loss.total_rows
            pipeline.run(stages, lambda on_gradient: self._backward(loss, on_gradient))
            if isinstance(stages.exchange, SharedExchange):
                flat.grads[...] = stages.staging.values  # an updater may write to its gradients: each rank has its own
        if clip is not None:
            complete.grads.clip(-clip, clip, out=complete.grads)
        self._apply()

    def _pipeline(
        self, key: tuple[Any, ...], threshold: int, make: Callable[..., BucketExchange]
    ) -> tuple[SumStages, GradientPipeline]:
        """The pipeline in use, or a new one where the last step had another method or other settings."""
        if self._in_use is None or self._in_use[0] != key:
            flat = self._flat
            buckets = fused_buckets(flat.entries, flat.size, threshold, self.world_size)
            exchange = make(buckets, flat.values.dtype)
            pipeline = GradientPipeline(self._executor, buckets, flat.entries, ahead=exchange.comm.goes_on)
            self._in_use = key, SumStages(exchange, self._staging(exchange), self._ops), pipeline
        return self._in_use[1:]

    def _backward(
        self, loss: TrainingLoss | RecordedLoss, on_gradient: Callable[[Param], None] | None, *, own_mean: bool = False
    ) -> Net:
        """Fill the gradients of the mean loss over the rows of all ranks, or of this one (own_mean)."""
        model = loss.claim()
        if model is not self.model:
            raise ConfigError(Problem("loss", "is of a model that this DistOpt does not train", repr(loss)))
        net = model.net
        group_of.set(self._comms.group_of)
        if own_mean and not net.partitioned:
            net.divide_by(loss.rows)
        try:
            net.backward(on_gradient)
        except BaseException as error:
            # Buckets that are under way would wait for this rank until their deadline.
            if self.world_size > 1:
                self.comm.abort(f"rank {self.rank_in_global} failed in its backward pass: {error}")
            raise
        if own_mean and net.partitioned:  # the layers' gradients for each other are of the mean over all rows
            net.flat.grads *= loss.total_rows / loss.rows
        self._state.add_owed()
        return net

    def _apply(self) -> None:
        assert self.model is not None
        self._state.update.apply(self.step, getattr(self.model, "unused", frozenset()))
        self.step += 1
        for param in self._net.params:
            param.versions[0] += 1
        self.model.number = self.step

    @property
    def _ops(self) -> Any:
        assert self.model is not None
        return self.model.ops

    def _host(self, array: Any) -> np.ndarray:
        return self._ops.to_host(array)
