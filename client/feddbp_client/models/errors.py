"""What can be wrong with a model."""

from feddbp_common.errors import ConfigurationError


class ModelError(ConfigurationError):
    """An architecture that does not exist, or does not fit the images."""
