"""Trained nets: a net that is called on arrays, its evaluation, and its predictions of arrays and files."""
