"""What is printed: streams that may go away, and text of others on a terminal."""
