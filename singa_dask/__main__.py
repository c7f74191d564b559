"""`python -m singa_dask` is the `singa-dask` command."""

from singa_dask.cli import main

if __name__ == "__main__":
    main(prog_name="singa-dask")
