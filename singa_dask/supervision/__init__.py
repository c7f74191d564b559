"""What the driver does during a run: starts groups, watches them, restarts what is lost, keeps the record."""
