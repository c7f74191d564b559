"""The user's own code that a checkpoint keeps, for the processes that load the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job import Job
from singa_dask.job.code_bundle import CodeBundle, named_code, unpacked
from singa_dask.job.code_trust import is_own
from singa_dask.job.user_code import searching, user_code
from singa_dask.training.checkpoint import Checkpoint


@contextmanager
def code_of(
    checkpoint: Checkpoint, path: Path, *, trust: bool = False, job: Job | None = None
) -> Iterator[CodeBundle | None]:
    """Inside, the names of user code resolve to what the checkpoint keeps.

    Loading pickled code runs it. It is loaded if this user's key has signed it, or with `trust`. Otherwise this
    process must find all of it. job: used instead of the checkpoint's; its own code comes first.
    Raises CheckpointError for code that is needed and not trusted.
    """
    kept = checkpoint.code
    trusted = kept is not None and (trust or is_own(kept.pickled, kept.signature))
    if kept is None or (trusted and job is None):
        with unpacked(kept):
            yield kept
        return
    lacking = _lacking(job or Job.from_text(checkpoint.job))
    if lacking and not trusted:
        raise CheckpointError(
            f"{path}: keeps Python code ({', '.join(lacking)}) that another user, or you with another key, has "
            "written. Loading it runs it. If you trust its origin, give --trust-code (in Python trust_code=True)."
        )
    with unpacked(kept if lacking else None, lacking):
        yield kept if lacking else None


def _lacking(job: Job) -> list[str]:
    """The user code of a job that this process does not find."""
    names = []
    with searching(job.folder):
        for name, key in named_code(job.proto):
            try:
                user_code(name, key)
            except ConfigError:
                names.append(name)
    return list(dict.fromkeys(names))
