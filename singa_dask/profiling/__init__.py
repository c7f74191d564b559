"""Profiles of machines: the product's own kernels, collectives, codecs, servers and loader, timed where they run."""
