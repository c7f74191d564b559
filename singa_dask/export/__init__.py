"""Trained nets in the formats of other systems."""
