"""Recurrent cells, their loops over time, and rows of tables."""
