"""What both ends of a gRPC channel share: credentials, keepalive, refusals."""
