"""Images and labels of one client: its shard of a public data set, or its own private data."""

from feddbp_client.data.batches import batches
from feddbp_client.data.dataset_cache import SharedDatasetCache, clear_dataset_cache
from feddbp_client.data.datasets import load_dataset
from feddbp_client.data.images import DataError, ImageParts, ImageRows, LabelledImages
from feddbp_client.data.partition import dirichlet_split, least_samples, train_test_split
from feddbp_client.data.private import check_samples_apart, load_private_data
from feddbp_client.data.readers.download import download
from feddbp_client.data.row_cache import CacheSpace
from feddbp_client.data.shard import ClientData, Split, at_image_size, private_shard, shard_of

__all__ = [
    "CacheSpace",
    "ClientData",
    "DataError",
    "ImageParts",
    "ImageRows",
    "LabelledImages",
    "SharedDatasetCache",
    "Split",
    "at_image_size",
    "batches",
    "check_samples_apart",
    "clear_dataset_cache",
    "dirichlet_split",
    "download",
    "least_samples",
    "load_dataset",
    "load_private_data",
    "private_shard",
    "shard_of",
    "train_test_split",
]
