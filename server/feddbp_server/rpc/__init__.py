"""The gRPC services: parse, authorise, call the coordinator, map errors to status codes."""
