# singa_dask on NVIDIA GPUs (CUDA 13, a driver of version 580 or later):
#   docker build -f docker/gpu.Dockerfile -t singa-dask:gpu .
#   docker run --rm --gpus all --shm-size=2g -v "$PWD":/work singa-dask:gpu train job.conf --workers 2
FROM python:3.13-slim

COPY pyproject.toml README.md LICENSE /src/
COPY singa_dask /src/singa_dask
COPY datasets /src/datasets
RUN pip install --no-cache-dir "/src[mpich,datasets,estimators,tables,fields,dashboard,gpu]" && rm -r /src

RUN useradd --create-home --uid 1000 singa && install --directory --owner=singa /work
USER 1000
WORKDIR /work

ENTRYPOINT ["singa-dask"]
CMD ["--help"]
