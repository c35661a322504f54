"""The version of this software, as installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("feddbp")
except PackageNotFoundError:  # run from a checkout that is only on the path
    VERSION = "0+unknown"
