"""The parts of benchmarks that have several: of exchange, server and limits."""
