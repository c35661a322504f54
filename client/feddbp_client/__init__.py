"""The client: models, data, losses, trainers and the daemon. The torch side."""
