"""Readers of data where they lie: each finds the blocks of a source without reading them."""
