"""State that outlives a process: images of it, and where they are."""
