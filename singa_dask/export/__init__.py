"""Export of trained nets to other formats."""
