"""The aggregation server: rounds, strategies, store and gRPC service. Never imports torch by itself."""
