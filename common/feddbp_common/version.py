"""The installed version of this software."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("feddbp")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+unknown"
