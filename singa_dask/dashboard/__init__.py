"""The page Training of Dask's dashboard."""
