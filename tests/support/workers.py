"""What a test asks of all Dask workers."""

from singa_dask.cluster.workers import answering


def probe(client):
    """Every Dask worker that answers, in order of address."""
    workers, silent = answering(client, 10.0)
    assert workers, f"no Dask worker answers: {silent}"
    return workers
