"""The nets in PyTorch are no tests, and PyTorch is not installed where these run."""

collect_ignore = ["pytorch"]
