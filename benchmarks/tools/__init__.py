"""What benchmarks share: who competes and how, the nets, limited networks, tables of figures."""
