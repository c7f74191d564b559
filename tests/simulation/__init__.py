"""Histories of runs on a simulated cluster: everything above Dask and MPI is the product's, time and chance are ours.

A history is a function of its seed: the topology, the faults, and the delay of every message. More is in
docs/developers/simulation.md.
"""
