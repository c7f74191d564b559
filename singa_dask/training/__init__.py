"""The driver, the training loop of a worker, and what a run leaves behind."""
