"""Predicting block by block, in this process or on a Dask cluster, with bounded memory."""

from __future__ import annotations

import logging
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.cluster.cores import equal_share
from singa_dask.cluster.gpus import assign, chosen
from singa_dask.cluster.remote import run_each
from singa_dask.cluster.workers import answering
from singa_dask.data.columns import Role
from singa_dask.data.dask_client import check_client
from singa_dask.data.ingest.run import STATUS_SECONDS, check_workers, waiting_for_paused
from singa_dask.data.origins import BlockOrigins, Origins
from singa_dask.data.schema import Reading
from singa_dask.data.shared_files import SharedFiles, check_shared
from singa_dask.data.sources.files import files_of
from singa_dask.errors import ConfigError, NotFinite, Problem
from singa_dask.inference.blocks import Blocks, SampleBlock, Samples, close_shards
from singa_dask.inference.files import LayerOutput, writing
from singa_dask.inference.model import Model
from singa_dask.inference.placing import placing_of, stays_as_trained
from singa_dask.inference.predicting import NotANumber
from singa_dask.inference.sources import grid_of
from singa_dask.ops.blas import blas_threads

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

Submit = Callable[[SampleBlock], Any]
CLOSE_S = 10.0


def predict_blocks(model: Model, blocks: Blocks, out: Path, client: Client | None = None) -> int:
    """Write the predictions for all blocks to the file `out`; see `files`. Returns the number of samples.

    client: of the Dask cluster whose workers read and predict; without one, threads of this process do.
    Raises ConfigError, DataError; ClusterError where workers do not see the files.
    """
    files = files_of(blocks)
    if out.resolve() in {file.resolve() for file in {*files, *(file for block in blocks for file, _ in block.spans)}}:
        raise ConfigError(Problem("--out", "is a file that is predicted", str(out), "Name another file."))
    if client is not None:
        check_client(client)
        check_shared(client, SharedFiles(files))
    outputs = _outputs(model, blocks.reading)
    written, filled, origins = 0, Counter[str](), Origins([block.spans for block in blocks])
    found = NotANumber(model)
    grid = grid_of(blocks) if out.suffix.lower() == ".nc" else None
    placings = {output.name: output.placing for output in outputs}
    if stays_as_trained(model.known, placings, blocks.reading, files[0]) and grid is not None:
        grid = replace(grid, variables={})  # by whose sizes predictions would get these dimensions
    with writing(out, outputs, grid) as write, _submitting(model, client) as (submit, ahead):
        try:
            for block, predicted in zip(blocks, _in_order(submit, blocks, ahead, client), strict=True):
                rows = len(predicted.values[outputs[0].name])
                if predicted.numbers is None:
                    predicted = _numbered(predicted, origins, origins.next(block.spans, rows), rows)
                write(_placed(predicted, outputs))
                found.count(predicted.values)
                filled.update(predicted.filled)
                written += rows
        except NotFinite as error:
            raise error.after(written) from None
    found.warn()
    model.known.tell_of_filled(filled, written)
    return written


def _numbered(predicted: Samples, origins: Origins, origin: BlockOrigins, rows: int) -> Samples:
    places = np.arange(rows)
    files = np.array(origins.files, object)[origin.of(Role.FILE, places)] if origins.files else None
    return replace(predicted, numbers=origin.of(Role.ROW, places), files=files)


def _placed(predicted: Samples, outputs: Sequence[LayerOutput]) -> Samples:
    """In the order of the source."""
    placings = {output.name: output.placing for output in outputs if output.placing is not None}
    values = {name: placing.predictions(predicted.values[name]) for name, placing in placings.items()}
    answers = {name: placings[name].answers(of) for name, of in predicted.answers.items() if name in placings}
    return replace(predicted, values={**predicted.values, **values}, answers={**predicted.answers, **answers})


def _outputs(model: Model, reading: Reading) -> list[LayerOutput]:
    known, found = model.known, []
    for o in model.outputs:
        placing, column = placing_of(known, o, reading), known.answers(o)
        if placing is not None and column is not None and column.shape == placing.trained.shape:
            column = replace(column, shape=placing.column.shape)
        names = tuple(known.names(o))
        found.append(
            LayerOutput(o, known.classifies(o), names, known.labels_positions(o), column, known.units(o), placing)
        )
    return found


def _predict(model: Model, block: SampleBlock) -> Samples:
    samples, known = block.read(model), model.known
    sources = {name: known.answered_by(name) or "" for name in model.outputs}
    answers = {name: samples.answers[by] for name, by in sources.items() if by in samples.answers}
    return replace(samples, values=model.computed(samples.values), answers=answers)


def _in_order(submit: Submit, blocks: Sequence[SampleBlock], ahead: int, client: Client | None) -> Iterator[Samples]:
    """The results of all blocks in their order, of which at most `ahead` are under way or waiting."""
    pending: deque[tuple[SampleBlock, Any]] = deque()
    try:
        for block in blocks:
            if len(pending) == ahead:
                yield _result(submit, *pending.popleft(), client)
            pending.append((block, submit(block)))
        while pending:
            yield _result(submit, *pending.popleft(), client)
    finally:
        for _, future in pending:
            future.cancel()


def _result(submit: Submit, block: SampleBlock, future: Any, client: Client | None) -> Samples:
    """The result of a task, which is submitted again if it waits for a worker that has paused. Raises ClusterError if
    no workers are left to compute it."""
    while client is not None:
        try:
            return future.result(STATUS_SECONDS)
        except TimeoutError:
            check_workers(client, "the predictions are not complete")
            if future.key in waiting_for_paused(client):
                future.cancel()
                future = submit(block)
    return future.result()


@contextmanager
def _submitting(model: Model, client: Client | None) -> Iterator[tuple[Submit, int]]:
    """A function that starts the task of a block, and how many of them there should be."""
    with ExitStack() as stack:
        if client is None:
            threads = equal_share(1) if model.ops.device == "cpu" else 1
            stack.callback(close_shards)
            stack.enter_context(blas_threads(1))
            pool = stack.enter_context(ThreadPoolExecutor(threads))
            yield lambda block: pool.submit(_predict, model, block), threads + 1
        else:
            threads = client.nthreads()
            stack.callback(run_each, client, close_shards, dict.fromkeys(threads, ()), CLOSE_S)
            having = _with_gpus(client, model.where.gpu)
            # Others are used only if these are lost.
            where: dict[str, Any] = {"workers": having, "allow_other_workers": True} if having else {}
            sent = client.submit(pickle.loads, pickle.dumps(model), pure=False, **where)
            ahead = 2 * sum(count for worker, count in threads.items() if worker in having or not having)
            yield lambda block: client.submit(_predict, sent, block, pure=False, **where), ahead


def _with_gpus(client: Client, listed: Sequence[int]) -> list[str]:
    """The Dask workers that predict on a GPU of their own: those that no run has, if there are some. Empty if all
    predict on CPUs. Raises ConfigError if GPUs are listed that no worker has."""
    workers, _ = answering(client)
    picked = chosen(listed, workers)
    if picked is None:
        return []
    gpus = assign(workers, picked)
    having = [info for info in workers if gpus.get(info.address) in info.gpus.seen and info.gpus.cupy]
    if not having:
        hint = "List others, or predict on CPUs: gpu=[]. Workers need CuPy too."
        raise ConfigError(Problem("gpu", "lists GPUs that no Dask worker can use", str(list(listed)), hint))
    return [info.address for info in [info for info in having if not info.group] or having]
