# singa_dask on CPUs, with MPICH:
#   docker build -f docker/cpu.Dockerfile -t singa-dask .
#   docker run --rm --shm-size=2g -v "$PWD":/work singa-dask train job.conf --workers 3
FROM python:3.13-slim

COPY pyproject.toml README.md LICENSE /src/
COPY singa_dask /src/singa_dask
COPY datasets /src/datasets
RUN pip install --no-cache-dir "/src[mpich,datasets,estimators,tables,fields,dashboard]" && rm -r /src

RUN useradd --create-home --uid 1000 singa && install --directory --owner=singa /work
USER 1000
WORKDIR /work

ENTRYPOINT ["singa-dask"]
CMD ["--help"]
