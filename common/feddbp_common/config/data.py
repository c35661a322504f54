"""The part of a run's configuration that is about data."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import Field, model_validator

from feddbp_common.config.catalog import CUSTOM_DATASET, DATASETS
from feddbp_common.config.public_model import PublicModel
from feddbp_common.config.types import CommaSeparated, split_at_commas
from feddbp_common.errors import ConfigurationError

MAX_CLASSES: Final = 65_536
_MAX_IMAGE_SIZE: Final = 1024


class DataConfig(PublicModel):
    """Data: the data set and how it is split over clients."""

    dataset: str = Field("digits", description=f"{', '.join(DATASETS)}, or {CUSTOM_DATASET} (each client has its own)")
    alpha: float = Field(0.1, gt=0, description="concentration of the Dirichlet split; smaller is more uneven")
    classes: int | None = Field(
        None, ge=2, le=MAX_CLASSES, description=f"number of classes of a {CUSTOM_DATASET} data set"
    )
    class_names: CommaSeparated = Field((), description="class names in the order of class ids, comma-separated")
    image_size: int | None = Field(
        None,
        ge=1,
        le=_MAX_IMAGE_SIZE,
        description=f"side in pixels to scale images to (default: as published; for {CUSTOM_DATASET} the client's own)",
        json_schema_extra={"zero_is_none": True},
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_catalog_values(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        names = values.get("class_names")
        if isinstance(names, str) and names.strip() and not all(name.strip() for name in names.split(",")):
            raise ConfigurationError(f"{names!r} has an empty class name; leave out the comma too many")
        given = {name: value for name, value in values.items() if value is not None}
        known = DATASETS.get(str(values.get("dataset", "digits")))
        if known is not None:
            return {"classes": known.classes, "image_size": known.image_size, **given}
        return {"classes": len(split_at_commas(names)), **given} if names else values

    @model_validator(mode="after")
    def _classes_agree(self) -> Self:
        known = DATASETS.get(self.dataset)
        if known is None and self.dataset != CUSTOM_DATASET:
            raise ConfigurationError(
                f"no data set is called {self.dataset!r}; there are: {', '.join((*DATASETS, CUSTOM_DATASET))}"
            )
        if self.classes is None:
            raise ConfigurationError("a custom data set needs --classes or --class-names")
        if known is not None and self.classes != known.classes:
            raise ConfigurationError(f"{self.dataset} has {known.classes} classes, not {self.classes}")
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigurationError(f"{len(self.class_names)} class names for {self.classes} classes")
        if len(set(self.class_names)) != len(self.class_names):
            raise ConfigurationError("a class name is given twice")
        return self

    @property
    def channels(self) -> int | None:
        """Channels of the images; None for custom data, where clients may differ."""
        known = DATASETS.get(self.dataset)
        return None if known is None else known.channels
