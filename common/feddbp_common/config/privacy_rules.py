"""Settings by which the server of a run sees less of its clients' data, and what they go together with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import CAREFUL_SAMPLES, FisherForm, PrivacyConfig, WireConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS, PRESET_MARK, Method, MethodSettings
from feddbp_common.methods.frozen import FROZEN
from feddbp_common.secure_sums import MAX_CLIENTS, MIN_CLIENTS

if TYPE_CHECKING:
    from feddbp_common.config.run import RunConfig

_DEFAULT_METHOD: Final = "feddbp"
_FLAG: Final = TypeAdapter(bool)


def unfold_privacy(values: dict[str, Any]) -> dict[str, Any]:
    """A run's values with those that its privacy preset, dp or secure_sums stand for; given ones stay as they are."""
    privacy, wire = _given(values.get("privacy")), _given(values.get("wire"))
    if privacy is not None and privacy.get("dp") == FROZEN.name and "method" not in values:
        values = {**values, "method": FROZEN.name}
    method = METHODS.get(str(values.get("method", _DEFAULT_METHOD)).partition(PRESET_MARK)[0])
    if privacy is None or wire is None or method is None:
        return values
    if "dp" not in privacy and (alone := [name for name in ("epsilon", "delta") if name in privacy]):
        # also at its default, which is not to be taken for a promise
        raise ConfigurationError(f"{alone[0]} is a setting of dp = frozen; the run has dp = off")
    aggregation, is_secure = _given(values.get("aggregation")) or {}, _is_on(privacy.get("secure_sums"))
    if is_secure and aggregation.get("sums") == "float":
        # only if given: secure runs are stored without `sums`
        raise ConfigurationError(
            "secure_sums adds up in fixed point, but sums = float is given; leave out one of the two"
        )
    if method.fuses and (is_secure or aggregation.get("sums") == "fixed"):
        privacy = {"fusion": "client", **privacy}
    if privacy.get("preset") != "careful":
        return {**values, "privacy": privacy} if privacy else values
    filled: dict[str, Any] = {"min_class_samples": CAREFUL_SAMPLES, "counts": "buckets"}
    if method.fuses and wire.get("fisher") != FisherForm.TOP_CHANNELS:
        filled["fusion"] = "client"
    privacy = {**filled, **privacy}
    if method.fuses and privacy.get("fusion") == "server":
        wire = {"fisher": FisherForm.TOP_CHANNELS, **wire}
    return {**values, "privacy": privacy, "wire": wire}


def check_preset(privacy: PrivacyConfig, wire: WireConfig, method: Method, *, has_prototypes: bool) -> None:
    """Raises ConfigurationError if settings that were given undo those of the preset."""
    if privacy.preset != "careful":
        return
    if not has_prototypes:
        raise ConfigurationError(f"privacy = careful is for methods that upload prototypes; {method.name} uploads none")
    if privacy.min_class_samples < CAREFUL_SAMPLES:
        _refuse(f"min_class_samples of at least {CAREFUL_SAMPLES}", privacy.min_class_samples)
    if privacy.counts != "buckets":
        _refuse("counts = buckets", privacy.counts)
    if method.fuses and privacy.fusion == "server" and wire.fisher is not FisherForm.TOP_CHANNELS:
        _refuse("fusion = client or fisher = top_channels", f"fusion = server with fisher = {wire.fisher.value}")


def check_noise(privacy: PrivacyConfig, method: Method, settings: MethodSettings, *, has_prototypes: bool) -> None:
    """Raises ConfigurationError if noise has nothing to be added to, or would give no guarantee."""
    if privacy.noise_multiplier and not has_prototypes:
        raise ConfigurationError(f"{method.name} uploads no prototypes; noise_multiplier has no effect on it")
    if privacy.dp == "off":
        return
    if method.fixed_network is None:
        raise ConfigurationError(
            f"dp = {privacy.dp} is for the method {FROZEN.name}: {method.name} trains its features on the samples "
            "themselves, and noise on their means gives no epsilon; see noise_multiplier"
        )
    if getattr(settings, "inference", "prototype") != "prototype":
        raise ConfigurationError(
            f"dp = {privacy.dp}: a client reports the accuracy of prototypes alone; that of its head would tell of "
            "its training samples"
        )
    noise_for(privacy.epsilon, privacy.delta)


def check_secure_release(privacy: PrivacyConfig, method: Method, *, rounds: int, participation: float) -> None:
    """Raises ConfigurationError if secure sums would show more of releases than their one sum."""
    if method.fixed_network is None or not privacy.secure_sums:
        return
    if privacy.dp == "off":
        raise ConfigurationError(
            f"secure_sums: the sum of a class that one client has is that client's own; {method.name} has secure sums "
            "with dp alone"
        )
    if rounds != 1 or participation < 1:
        raise ConfigurationError(
            f"dp = {privacy.dp} with secure_sums: a second sum, over other clients, would show the release of those "
            "that differ; give --rounds 1 and participation 1"
        )


def check_samples_private(privacy: PrivacyConfig, data: DataConfig, training: TrainingConfig) -> None:
    """Raises ConfigurationError if something else than the release would depend on a client's training samples."""
    if privacy.dp == "off":
        return
    if training.validation:
        raise ConfigurationError(
            f"dp = {privacy.dp}: validation would tell how many samples a client has; leave it out"
        )
    if data.image_size is None:
        raise ConfigurationError(
            f"dp = {privacy.dp}: images must not be scaled to a size that depends on them; give --image-size"
        )


def check_sums(run: RunConfig) -> None:
    """Raises unless the server of the run needs nothing but sums over clients, and may have them."""
    name, wanted = run.method, "secure_sums" if run.privacy.secure_sums else "sums = fixed"
    if run.method_spec.sum_weights(run.settings) is None:
        raise ConfigurationError(
            f"with {wanted} the server sees only sums over clients, but that of {name} needs more with these settings; "
            f"methods that do with sums: {', '.join(_summed_methods())}"
        )
    if run.method_spec.fuses and run.privacy.fusion != "client":
        raise ConfigurationError(f"with {wanted} clients of {name} have to fuse for themselves; add fusion = client")
    if run.aggregation.rule != "mean":
        raise ConfigurationError(
            f"with {wanted} the server sees only sums over clients, but aggregation {run.aggregation.rule} compares "
            "their uploads; leave aggregation at mean"
        )
    alone = next((field for field in ("finetune_rounds", "newcomers") if getattr(run, field)), None)
    if run.exchange == "off" or alone is not None:
        raise ConfigurationError(
            f"with {wanted} the server sees only sums over clients, but {alone or 'exchange = off'} needs the upload "
            "of a single one"
        )
    if run.privacy.secure_sums and not MIN_CLIENTS <= run.clients <= MAX_CLIENTS:
        raise ConfigurationError(
            f"a secure sum is over {MIN_CLIENTS} to {MAX_CLIENTS} clients; the run has {run.clients}"
        )
    if run.privacy.secure_sums and run.clients * run.participation < MIN_CLIENTS:
        raise ConfigurationError(f"a secure sum needs {MIN_CLIENTS} clients, but fewer would take part in a round")


def _refuse(wanted: str, given: object) -> None:
    raise ConfigurationError(f"privacy = careful means {wanted}, but {given} is given; leave out one of the two")


def _summed_methods() -> list[str]:
    return [name for name, method in METHODS.items() if method.sum_weights(method.settings()) is not None]


def _is_on(value: object) -> bool:
    """Of a flag that is not validated yet."""
    try:
        return value is not None and _FLAG.validate_python(value)
    except ValidationError:
        return False


def _given(part: Any) -> dict[str, Any] | None:
    """The settings of a part that are given; None if the part is nothing that can be validated."""
    if isinstance(part, BaseModel):
        return {name: getattr(part, name) for name in part.model_fields_set}
    return dict(part) if isinstance(part, Mapping) else {} if part is None else None
