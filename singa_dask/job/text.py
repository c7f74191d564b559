"""Jobs as text: reading, writing, and assembling a job from a job file, a cluster file and overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from google.protobuf import text_format

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.files import NotAFile, read_text
from singa_dask.job.gpus import keep_empty
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.locate import Place, Positions
from singa_dask.job.overrides import apply_overrides
from singa_dask.job.scan import scan

# A str is a text, not a path, if it has several lines or starts like a field, a block or a comment.
_TEXT = re.compile(r"\s*$|\s*#|\s*\w+\s*[:{<]|.*[\n{\0]", re.DOTALL)

# A list with one entry, which is easier to read without brackets. Text has quotes and does not match.
_LIST_OF_ONE = re.compile(r"^( *\w+: )\[([^,\[\]]+)\]$", re.MULTILINE)


def load_job(source: str | Path, overrides: Iterable[str] = (), cluster: str | Path | None = None) -> JobProto:
    """The job of `source`, a path or a text. check_job checks it.

    cluster: a file (or text) with a `cluster { }` block only, which replaces the job's own.
    overrides: "path=value", applied last and in order; see apply_overrides.
    Raises ConfigError with every unknown field and wrong value: path, value, nearest name, file, line, column.
    """
    return read_job(source, overrides, cluster)[0]


def read_job(
    source: str | Path, overrides: Iterable[str] = (), cluster: str | Path | None = None
) -> tuple[JobProto, Positions]:
    """As load_job, with the places of the job's fields for check_job's line numbers."""
    job, positions = _parse(source)
    if cluster is not None:
        _replace_cluster(job, positions, cluster)
    apply_overrides(job, overrides, positions)
    return job, positions


def job_to_text(job: JobProto) -> str:
    """The job as text, from which load_job builds an equal message. Unset fields are left out."""
    text = text_format.MessageToString(job, as_utf8=True, use_short_repeated_primitives=True, use_index_order=True)
    return _LIST_OF_ONE.sub(r"\1\2", text)


def _parse(source: str | Path, what: str = "job file") -> tuple[JobProto, Positions]:
    text, file = _read(source, what), _file_name(source)
    result = scan(text, file)
    if result.faults:
        raise ConfigError(result.problems)
    job = JobProto()
    try:
        text_format.Parse(text, job)
    except text_format.ParseError as error:
        problem = Problem("job", str(error), line=error.GetLine(), column=error.GetColumn(), file=file)
        raise ConfigError(problem) from error
    if ("gpu",) in result.places:
        keep_empty(job, "gpu")
    return job, Positions(result.places, file)


def _file_name(source: str | Path) -> str | None:
    """The file to name in errors; None if `source` is the text itself."""
    return None if isinstance(source, str) and _TEXT.match(source) else str(source)


def _read(source: str | Path, what: str) -> str:
    if _file_name(source) is None:
        return str(source)
    path = Path(source)
    try:
        return read_text(path, "utf-8-sig")
    except FileNotFoundError:
        folder = path.parent if path.parent.is_dir() else path.parent.parent
        there = [found for pattern in ("*.conf", "*/*.conf") for found in folder.glob(pattern)]
        if what == "cluster file":
            there = [found for found in there if not _is_job(found)]
        hint = nearest(str(path), map(str, there)) if there else None
        raise ConfigError(Problem(what, "file not found", str(source), hint)) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(Problem(what, "is not UTF-8 text", line=line, file=str(source))) from None
    except NotAFile as error:
        run = path / "job.conf"
        hint = f"Write {run}, the job of this run." if run.is_file() else "Name a file."
        raise ConfigError(Problem(what, f"is {error.kind}, not a file", str(source), hint)) from None
    except OSError as error:
        raise ConfigError(Problem(what, f"cannot be read ({error.strerror})", str(source))) from error


def _is_job(path: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return "neuralnet" in read_text(path)
    return False


def _replace_cluster(job: JobProto, positions: Positions, cluster: str | Path) -> None:
    part, places = _parse(cluster, "cluster file")
    surplus = [field.name for field, _ in part.ListFields() if field.name != "cluster"]
    if surplus or not part.HasField("cluster"):
        at = places.find((surplus[0],)) if surplus else Place(_file_name(cluster))
        message = "a cluster file must hold one cluster { } block and nothing else"
        received = surplus[0] if surplus else "no cluster { }"
        raise ConfigError(Problem("cluster file", message, received, None, at.line, at.column, at.file))
    job.cluster.CopyFrom(part.cluster)
    positions.replace(("cluster",), places)
