"""Traces of runs: what ranks and servers do in some steps, in a file for Perfetto."""

from singa_dask.tracing.recorder import EVENT, LIMIT, Recorder, carried, machine, records_of, span

__all__ = ["EVENT", "LIMIT", "Recorder", "carried", "machine", "records_of", "span"]
