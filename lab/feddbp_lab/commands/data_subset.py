"""`feddbp data subset`: an npz with some images of each class of a public data set."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field

from feddbp_common.config.catalog import DATASETS
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import human_bytes
from feddbp_common.optional_deps import CLIENT_MODULES, require

if TYPE_CHECKING:
    from feddbp_client.data import LabelledImages

PROG: Final = "feddbp data subset"
_IN_NO_EXPERIMENT: Final = "digits"


class DataSubsetOptions(FrozenModel):
    """Subset: what is drawn, from where, and where it is written."""

    per_class: int = Field(ge=1, description="images of each class, at most; a class with fewer keeps all")
    seed: int = Field(0, ge=0, description="decides which images are drawn, and their order")
    data_dir: Path = Field(Path("data"), description="where the data set is found or downloaded to")
    out: Path = Field(
        description="directory for the file NAME.npz; a client's --data-dir", json_schema_extra={"metavar": "DIR"}
    )
    overwrite: bool = Field(False, description="replace an earlier subset there")


class DataSubsetConfig(FrozenModel):
    """All options of `feddbp data subset`."""

    # an empty table: so that a required option that is missing is named
    subset: DataSubsetOptions = Field(default_factory=dict, validate_default=True)


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG,
        "Draws images of each class of a public data set into a file that clients read in its place: runs on it are "
        "shorter. The same input and seed give the same file.",
        DataSubsetConfig,
    )
    parser.usage = f"{PROG} NAME --per-class N --out DIR [options]"
    parser.add_argument("name", metavar="NAME", help=", ".join(DATASETS))
    flags = parser.parse_intermixed_args(argv)
    options = settings_from(DataSubsetConfig, flags).subset
    if flags.name not in DATASETS:
        hint = did_you_mean(flags.name, DATASETS) or f"; there are: {', '.join(DATASETS)}"
        raise ConfigurationError(f"no public data set is called {flags.name!r}{hint}")
    require(PROG, CLIENT_MODULES, extra="client")
    target = options.out.expanduser() / f"{flags.name}.npz"
    _print(flags.name, _saved(flags.name, target, options), target, options)
    return ExitCode.OK


def _saved(name: str, target: Path, options: DataSubsetOptions) -> LabelledImages:
    from feddbp_client.data import DataError
    from feddbp_client.data.subset import save_subset

    try:
        with _readers_logged():
            return save_subset(
                name,
                options.data_dir,
                target,
                per_class=options.per_class,
                seed=options.seed,
                overwrite=options.overwrite,
            )
    except DataError as error:
        raise ConfigurationError(str(error)) from error


@contextmanager
def _readers_logged() -> Iterator[None]:
    """Shows on stderr what readers log: a download takes minutes."""
    logger, handler = logging.getLogger("feddbp_client.data"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _print(name: str, subset: LabelledImages, target: Path, options: DataSubsetOptions) -> None:
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    counts = [int((subset.labels == label).sum()) for label in range(len(subset.class_names))]
    smaller = sum(count < options.per_class for count in counts)
    print(f"images  {len(subset)} of {sum(map(bool, counts))} classes")
    if smaller:
        classes = "1 class has" if smaller == 1 else f"{smaller} classes have"
        print(f"note    {classes} fewer than {options.per_class} images: all of them were taken")
    print(f"file    {target}, {human_bytes(target.stat().st_size)}")
    print(f"sha256  {digest}\n")
    where = shlex.quote(str(options.out))
    if name != _IN_NO_EXPERIMENT:
        print(f"feddbp experiment run table1 --only {name} --data-dir {where} --out results")
    print(f"feddbp-server --dataset {name}")
    print(f"feddbp-client --id 0 --data-dir {where}")
