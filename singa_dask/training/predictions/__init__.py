"""Predictions of a trained net for data in files, block by block."""
