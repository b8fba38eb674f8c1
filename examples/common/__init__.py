"""What the examples that run on the local cluster share."""
