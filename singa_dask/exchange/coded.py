"""The exchange through a codec: one way out, and two ways back, for new values and for sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from singa_dask.comm.codecs import Codec
from singa_dask.comm.communicator import Communicator, Request, part_of
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.buckets import Bucket


class CodedExchange(BucketExchange):
    """The way out: every rank encodes its gradients of each other rank's part; the owner of the part adds them up.

        payload_rj = encode(gradients_r[part j] + residual_r[part j])            from rank r to rank j: all-to-all
        sums[part j] = gradients_j[part j] + sum over r != j of decode(payload_rj)            on rank j, in rank order

    residual: what this rank has not sent yet (error feedback, Seide et al. 2014); None drops it. uncoded: elements,
    ascending, that travel as they are: running statistics, of which nothing may be delayed.
    """

    exact = False
    in_place = True

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Codec,
        dtype: Any = np.float32,
        *,
        residual: np.ndarray | None = None,
        uncoded: np.ndarray | None = None,
    ) -> None:
        super().__init__(comm, buckets)
        self.dtype, self.residual, self._xp = np.dtype(dtype), residual, codec.xp
        # One for the thread that prepares a bucket, one for the thread that exchanges earlier buckets meanwhile: each
        # has scratch of its own.
        self._encoder, self._decoder = codec, deepcopy(codec)
        found = [inside(uncoded, bucket.elements) for bucket in buckets]
        self._own_uncoded = [within(each, part) for each, part in zip(found, self.parts, strict=True)]
        self._uncoded = [self._xp.asarray(each) for each in found]
        self._uncoded_sums: dict[int, np.ndarray] = {}
        self._longest = max((count for bucket in buckets for count in bucket.counts), default=0)
        # Either way, one bucket may arrive while the one before it is decoded.
        longest = comm.size * codec.max_nbytes(self._longest, self.dtype)
        self._received, self._gathered = self._xp.empty((2, 2, longest), np.uint8)
        # One for each bucket: the next one is encoded while this one travels.
        self._sent = [self._xp.empty(sum(self._max_sizes(bucket)), np.uint8) for bucket in buckets]
        self._sizes: dict[int, list[int]] = {}
        self._sizes_known = codec.nbytes(1, self.dtype) is not None  # else ranks tell each other
        # By bucket: the request, and the payloads that have arrived when it is complete.
        self._arriving: dict[int, tuple[Request, list[np.ndarray]]] = {}
        # The payloads of the way back, and where each belongs.
        self._returning: dict[int, tuple[Request, list[tuple[np.ndarray, slice]]]] = {}

    @property
    def transport(self) -> str:
        return f"{self.comm.kind}, {self._encoder.name}"

    @property
    def overflows(self) -> int:  # type: ignore[override]
        return self._encoder.overflows + self._decoder.overflows

    def warm_up(self) -> None:
        self._encoder.warm_up(self.dtype)

    def begin(self, step: int) -> None:
        self._encoder.begin(step)
        self._decoder.begin(step)

    def prepare(self, index: int, gradients: np.ndarray) -> None:
        bucket, uncoded = self.buckets[index], self._uncoded[index]
        if uncoded.size:
            self._uncoded_sums[index] = gradients[uncoded]
            gradients[uncoded] = 0
        sizes, end = [], 0
        for rank in range(self.comm.size):
            payload = self._sent[index][:0]
            if rank != self.comm.rank:
                part = bucket.part(rank)
                payload = encoded(self._encoder, gradients[part], self.residual, part, self._sent[index][end:])
            sizes.append(payload.size)
            end += payload.size
        self._sizes[index] = sizes

    def start_reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        comm, sizes = self.comm, self._sizes.pop(index)
        arriving = self._arriving_sizes(sizes, self.buckets[index].counts[comm.rank])
        received = self._received[index % 2][: sum(arriving)]
        payloads = [received[part_of(rank, arriving)] for rank in range(comm.size) if rank != comm.rank]
        request = comm.start_all_to_all(self._sent[index][: sum(sizes)], sizes, received, arriving)
        self._arriving[index] = request, payloads

    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        if self._uncoded[index].size:
            self.comm.all_reduce(self._uncoded_sums[index])
        part = self.parts[index]
        if sums is not gradients:
            sums[part] = gradients[part]
        if index not in self._arriving:
            self.start_reduce_scatter(index, gradients, sums)
        request, payloads = self._arriving.pop(index)
        request.wait()
        for payload in payloads:
            self._decoder.decode(payload, sums[part], add=True)

    @abstractmethod
    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        """Encode the own part, and start to gather every rank's payload."""

    def all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        if index not in self._returning:
            self.start_all_gather(index, values, new)
        request, payloads = self._returning.pop(index)
        request.wait()
        self._decode_returned(index, values, payloads)

    @abstractmethod
    def _decode_returned(self, index: int, values: np.ndarray, payloads: list[tuple[np.ndarray, slice]]) -> None: ...

    def _max_sizes(self, bucket: Bucket) -> list[int]:
        """The most bytes that this rank can send each rank of a bucket."""
        sizes = [self._encoder.max_nbytes(count, self.dtype) for count in bucket.counts]
        sizes[self.comm.rank] = 0
        return sizes

    def _arriving_sizes(self, sizes: Sequence[int], count: int) -> list[int]:
        """Bytes that every rank sends here. sizes: that this rank sends."""
        comm = self.comm
        if self._sizes_known:
            one = self._encoder.max_nbytes(count, self.dtype)
            return [one if rank != comm.rank else 0 for rank in range(comm.size)]
        told, ones = np.empty(comm.size, np.int64), [1] * comm.size
        comm.all_to_all(np.array(sizes, np.int64), ones, told, ones)
        return told.tolist()


class CodedValues(CodedExchange):
    """Back travel differences: of an owner's new values from those that all ranks have.

        values[part j] += decode(encode(new_j[part j] - values[part j]))            from rank j to all: all-gather

    What a difference loses is part of the next step's difference (Tang et al. 2019). All ranks have the same values in
    any step. frozen: elements, ascending, that are not updated.
    """

    residual: np.ndarray

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Codec,
        dtype: Any = np.float32,
        *,
        uncoded: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> None:
        residual = codec.xp.zeros(max((bucket.stop for bucket in buckets), default=0), dtype)
        super().__init__(comm, buckets, codec, dtype, residual=residual, uncoded=uncoded)
        self._frozen = [self._xp.asarray(inside(frozen, bucket.elements)) for bucket in buckets]
        self._scratch = self._xp.empty(self._longest, self.dtype)

    def take_over(self, residual: np.ndarray) -> np.ndarray:
        """Adopt the residual of another exchange. Returns that of this rank's own parts: it is not sent."""
        rest = np.zeros_like(residual)
        self.residual[...] = self._xp.asarray(residual)
        for part in self.parts:
            rest[part], self.residual[part] = residual[part], 0
        return rest

    def prepare(self, index: int, gradients: np.ndarray) -> None:
        if self._frozen[index].size:
            gradients[self._frozen[index]] = 0
        super().prepare(index, gradients)

    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        super().reduce_scatter(index, gradients, sums)
        if self._uncoded[index].size:
            own = self._own_uncoded[index]
            sums[self._uncoded[index][own]] = self._uncoded_sums.pop(index)[own]

    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        comm, bucket, part = self.comm, self.buckets[index], self.parts[index]
        uncoded = self._uncoded[index]
        if uncoded.size:
            own = self._own_uncoded[index]
            exact = self._xp.zeros(uncoded.size, self.dtype)
            exact[own] = new[uncoded[own]]
            comm.all_reduce(exact)
            values[uncoded] = exact
        sizes = [self._decoder.max_nbytes(count, self.dtype) for count in bucket.counts]
        payloads = self._gathered[index % 2][: sum(sizes)]
        self._decoder.encode_change(new[part], values[part], payloads[part_of(comm.rank, sizes)], self._scratch)
        returning = [(payloads[part_of(rank, sizes)], bucket.part(rank)) for rank in range(comm.size)]
        del returning[comm.rank]
        self._returning[index] = comm.start_all_gather(payloads, sizes), returning

    def _decode_returned(self, index: int, values: np.ndarray, payloads: list[tuple[np.ndarray, slice]]) -> None:
        for payload, part in payloads:
            self._decoder.decode(payload, values[part], add=True)


class CodedSums(CodedExchange):
    """Back travel the sums themselves.

        sums[part j] = gradients_j[part j] + residual_j[part j] + ...            on rank j, as above
        sum[part j] = decode(encode(sums[part j] + owed_j[part j]))                from rank j to all: all-gather

    owed: what this rank, as an owner, has not passed on; flat, of all elements, kept for the next step (DoubleSqueeze,
    Tang et al. 2019). None drops it. The own part of `residual` is what another cut of the buckets has left there.
    """

    def __init__(
        self,
        comm: Communicator,
        buckets: Sequence[Bucket],
        codec: Codec,
        dtype: Any = np.float32,
        *,
        residual: np.ndarray | None = None,
        owed: np.ndarray | None = None,
        uncoded: np.ndarray | None = None,
    ) -> None:
        super().__init__(comm, buckets, codec, dtype, residual=residual, uncoded=uncoded)
        self.owed = owed
        self._back = self._xp.empty(codec.max_nbytes(self._longest, self.dtype), np.uint8)

    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        part = self.parts[index]
        if self.residual is not None:
            gradients[part] += self.residual[part]
            self.residual[part] = 0
        super().reduce_scatter(index, gradients, sums)

    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        comm, bucket, part = self.comm, self.buckets[index], self.parts[index]
        payload = encoded(self._decoder, new[part], self.owed, part, self._back)
        sizes = self._returning_sizes(payload.size, bucket)
        payloads = self._gathered[index % 2][: sum(sizes)]
        payloads[part_of(comm.rank, sizes)] = payload
        returning = [(payloads[part_of(rank, sizes)], bucket.part(rank)) for rank in range(comm.size)]
        self._returning[index] = comm.start_all_gather(payloads, sizes), returning

    def _decode_returned(self, index: int, values: np.ndarray, payloads: list[tuple[np.ndarray, slice]]) -> None:
        for payload, part in payloads:
            self._decoder.decode(payload, values[part])
        if self._uncoded[index].size:
            values[self._uncoded[index]] = self._uncoded_sums.pop(index)

    def _returning_sizes(self, size: int, bucket: Bucket) -> list[int]:
        """Bytes that every rank passes on."""
        if self._sizes_known:
            return [self._encoder.max_nbytes(count, self.dtype) for count in bucket.counts]
        return self.comm.all_gather_number(size).tolist()


def encoded(codec: Codec, values: np.ndarray, residual: np.ndarray | None, part: slice, out: np.ndarray) -> np.ndarray:
    """The payload of the values, in `out`; with what was kept back of this part, if there is a residual."""
    return codec.encode(values, out) if residual is None else codec.encode_sum(values, residual[part], out)


def inside(indices: np.ndarray | None, elements: slice) -> np.ndarray:
    """Those of the ascending indices that lie in this range."""
    if indices is None:
        return np.empty(0, np.int64)
    return indices[within(indices, elements)]


def within(indices: np.ndarray, elements: slice) -> slice:
    """Which of the ascending indices lie in this range."""
    first, last = np.searchsorted(indices, (elements.start, elements.stop))
    return slice(int(first), int(last))
