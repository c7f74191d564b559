"""Training loops of one's own: gradients, optimisers and nets, with the names of Apache SINGA 3 and later."""
