"""From sources to shards in two passes, in this process or on a Dask cluster.

The first pass reads every block once and writes its part (stage.py). From the summaries of all blocks follow columns,
classes and encoders (layout.py). The second pass makes the shards of the parts (assemble.py).
"""
