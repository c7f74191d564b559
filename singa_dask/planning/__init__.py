"""The cost model: from nets and a profile of the machines to the seconds, bytes and memory of a step, without IO."""
