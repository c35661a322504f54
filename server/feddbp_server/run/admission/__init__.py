"""What is let in: limits, whose turn it is, checks of what clients send, and refusals."""
