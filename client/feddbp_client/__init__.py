"""The client: data, models, losses, methods, local training and the daemon. Imports torch."""
