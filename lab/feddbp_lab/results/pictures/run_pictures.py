"""The pictures of one run: accuracy, losses, gain over local training, split, timeline, classes and similarities."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.evaluation import counted_by_round
from feddbp_common.humanize import quantity
from feddbp_common.methods import method_named
from feddbp_common.methods.contract import Method
from feddbp_common.printable import printable
from feddbp_lab.results.class_map import class_map, similarities
from feddbp_lab.results.curves import INK, plot_text, scale_losses
from feddbp_lab.results.pictures.figure import BLUE, GREY, ORANGE, PALE, Picture, clipped
from feddbp_lab.results.run_files import RunFiles, last_accuracies
from feddbp_lab.results.run_info import class_names
from feddbp_lab.results.run_results import EvaluationLine, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from feddbp_common.wire import PrototypeSet
    from feddbp_lab.results.class_map import ClassMap
    from feddbp_server.reporting.history import RoundRecord

_TERM_STYLES: Final = ((BLUE, "-"), (ORANGE, "--"), (GREY, "-."), (BLUE, ":"), (ORANGE, (0, (5, 1, 1, 1))))
_STEP_COLOURS: Final = {"download": "#9dbbe0", "train": BLUE, "upload": "#04152b", "wait": "#ececec"}
_TIMELINE_ROUNDS: Final = 5
_TIMELINE_CLIENTS: Final = 40
_WIDE: Final = 4.0
"""Inches from which on a legend of long names has two columns."""
_NAMED: Final = 30
"""Classes up to which each is named on an axis."""


def pictures_of(files: RunFiles, results: RunResults, baseline: Mapping[int, float]) -> list[Picture]:
    """Those for which the run has the data; `baseline` has every client's accuracy in a `local` run."""
    names = [printable(name, 40) for name in _class_names(results.summary)]
    made = [
        _accuracy(results),
        _losses(results),
        _gain(results, baseline),
        _split({number: entry["label_counts"] for number, entry in files.clients().items()}, names),
        _timeline(files.rounds()),
        *_prototypes(files.snapshots(), names),
    ]
    return [picture for picture in made if picture is not None]


def _class_names(summary: Mapping[str, Any]) -> list[str]:
    """Empty if this installation lacks the run's method."""
    try:
        return class_names(RunConfig.model_validate(summary["config"]))
    except (ConfigurationError, LookupError, ValueError):
        return []


# --- accuracy and losses ---


def _accuracy(results: RunResults) -> Picture | None:
    curves = {client["client"]: results.accuracies(client["client"]) for client in results.summary["per_client"]}
    mean = {point["round"]: 100 * point["weighted"] for point in results.summary["curve"] if point["round"] > 0}
    if not mean:
        return None
    return Picture(
        name="accuracy",
        title="Local test accuracy",
        caption=f"Mean by samples, the middle 80 % of {quantity(len(curves), 'client')}, and every client as a thin "
        "line. A client that is gone stays in the mean and the band with its last accuracy.",
        draw=partial(_draw_accuracy, mean=mean, curves=curves, spread=_spread(results, list(mean))),
    )


def _spread(results: RunResults, rounds: list[int]) -> dict[int, list[float]]:
    """By round, the accuracies in per cent of the clients that the mean is over."""
    lines = sorted(results.metrics, key=lambda line: int(line["round"]))
    by_round = {
        number: [100 * evaluation.line["accuracy"] for evaluation in counted.values()]
        for number, counted in counted_by_round(map(EvaluationLine, lines))
    }
    return {number: by_round[number] for number in rounds if by_round.get(number)}


def _draw_accuracy(
    axes: Axes, *, mean: dict[int, float], curves: dict[int, dict[int, float]], spread: dict[int, list[float]]
) -> None:
    from matplotlib.ticker import MaxNLocator

    for curve in curves.values():
        trained = {number: 100 * accuracy for number, accuracy in curve.items() if number > 0}
        axes.plot(list(trained), list(trained.values()), color=GREY, linewidth=0.4, alpha=0.6, zorder=1)
    low, high = ([np.percentile(column, share) for column in spread.values()] for share in (10, 90))
    axes.fill_between(
        list(spread), low, high, color=BLUE, alpha=0.15, linewidth=0, zorder=2, label="middle 80 % of clients"
    )
    axes.plot(list(mean), list(mean.values()), color=BLUE, linewidth=1.8, zorder=3, label="mean by samples")
    axes.set(xlabel="completed rounds", ylabel="accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right")


def _losses(results: RunResults) -> Picture | None:
    losses = results.mean_losses()
    if not losses:
        return None
    caption = "Unweighted terms of the local loss and their weighted total, mean over clients."
    draw = partial(_draw_losses, losses=losses, method=method_named(results.summary["method"]))
    return Picture(name="losses", title="Local loss", caption=caption, draw=draw, aspect=0.75)


def _draw_losses(axes: Axes, *, losses: dict[str, dict[int, float]], method: Method) -> None:
    from matplotlib.ticker import MaxNLocator

    terms = [name for name in losses if name != "total"]
    for name, values in losses.items():
        colour, dash = (INK, "-") if name == "total" else _TERM_STYLES[terms.index(name) % len(_TERM_STYLES)]
        label = plot_text(method.loss_term(name), 50)
        width = 1.8 if name == "total" else 1.2
        axes.plot(list(values), list(values.values()), color=colour, linestyle=dash, linewidth=width, label=label)
    scale_losses(axes, losses)
    axes.set(xlabel="round", ylabel="loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # the names of terms are long
    axes.figure.legend(
        loc="outside lower center", ncols=2 if axes.get_window_extent().width > _WIDE * axes.figure.dpi else 1
    )


def _gain(results: RunResults, baseline: Mapping[int, float]) -> Picture | None:
    now = last_accuracies(results.metrics)
    pairs = {client: (baseline[client], now[client]) for client in sorted(now) if client in baseline}
    if not pairs:
        return None
    better = sum(after > before for before, after in pairs.values())
    points = 100 * sum(after - before for before, after in pairs.values()) / len(pairs)
    caption = (
        f"Every client's last accuracy in this run and in local training: {better} of {len(pairs)} better, "
        f"{points:+.1f} points on average."
    )
    return Picture(name="gain", title="Gain over local training", caption=caption, draw=partial(draw_gain, pairs=pairs))


def draw_gain(axes: Axes, *, pairs: Mapping[int, tuple[float, float]], ours: str = "this run") -> None:
    """Paired dots, the largest gain first."""
    ordered = sorted(pairs.items(), key=lambda item: item[1][0] - item[1][1])
    for place, (_, (before, after)) in enumerate(ordered):
        axes.plot([place, place], [100 * before, 100 * after], color=BLUE if after >= before else ORANGE, linewidth=1.0)
    places = range(len(ordered))
    size = 18 if len(ordered) <= 40 else 5
    axes.scatter(
        places, [100 * b for _, (b, _) in ordered], s=size, facecolor="white", edgecolor=INK, zorder=3, label="local"
    )
    axes.scatter(places, [100 * a for _, (_, a) in ordered], s=size, color=BLUE, zorder=4, label=ours)
    if len(ordered) <= 40:
        axes.set_xticks(list(places), [str(client) for client, _ in ordered])
    axes.set(xlabel="client, by gain", ylabel="accuracy (%)")
    axes.grid(axis="x", visible=False)
    # below the axes: within them it would cover clients
    axes.figure.legend(loc="outside lower center", ncols=2)


# --- data and time ---


def _split(counts: Mapping[int, list[int]], names: list[str]) -> Picture | None:
    known = {client: row for client, row in sorted(counts.items()) if row}
    if not known:
        return None
    matrix = np.array(list(known.values()), dtype=float).T
    return Picture(
        name="split",
        title="Split of the data",
        caption=f"Training samples of each class on each client; the largest circle is {int(matrix.max())} samples.",
        draw=partial(_draw_split, matrix=matrix, clients=list(known), names=names),
        inches_high=max(1.6, min(6.0, 0.22 * len(matrix) + 0.6)),
    )


def _draw_split(axes: Axes, *, matrix: Any, clients: list[int], names: list[str]) -> None:
    classes, columns = matrix.shape
    width = axes.get_window_extent().width / axes.figure.dpi * 72
    room = min(width * 0.9 / columns, 0.2 * 72)
    rows, places = np.nonzero(matrix)
    areas = matrix[rows, places] / matrix.max() * (0.9 * room) ** 2
    axes.scatter(places, rows, s=np.maximum(areas, 0.3), color=BLUE, alpha=0.8, linewidth=0)
    axes.set_ylim(classes - 0.5, -0.5)
    axes.set_xlim(-0.6, columns - 0.4)
    _name_classes(axes.set_yticks, names[:classes] or [str(number) for number in range(classes)])
    if columns <= 40:
        axes.set_xticks(range(columns), [str(client) for client in clients])
    axes.set(xlabel="client", ylabel="class")
    axes.grid(axis="x", visible=False)


def _timeline(rounds: list[RoundRecord]) -> Picture | None:
    shown = [record for record in rounds if record.clients][-_TIMELINE_ROUNDS:]
    if not shown:
        return None
    clients = sorted({client for record in shown for client in record.clients})[:_TIMELINE_CLIENTS]
    return Picture(
        name="timeline",
        title="Timeline",
        caption=f"What {quantity(len(clients), 'client')} did in {_last_rounds(len(shown))}, as the server saw it.",
        draw=partial(_draw_timeline, rounds=shown, clients=clients),
        inches_high=max(1.4, 0.14 * len(clients) + 0.8),
    )


def _last_rounds(count: int) -> str:
    return "the last round" if count == 1 else f"the last {count} rounds"


def _draw_timeline(axes: Axes, *, rounds: list[RoundRecord], clients: list[int]) -> None:
    from matplotlib.patches import Patch

    start = 0.0
    for record in rounds:
        for row, client in enumerate(clients):
            for kind, begun, ended in _parts(record.clients.get(client), record.seconds):
                axes.broken_barh(
                    [(start + begun, ended - begun)], (row - 0.38, 0.76), color=_STEP_COLOURS[kind], linewidth=0
                )
        axes.axvline(start, color=INK, linewidth=0.6)
        axes.annotate(f" round {record.round + 1}", (start, 1), xycoords=("data", "axes fraction"), va="bottom", size=7)
        start += record.seconds
    axes.set(xlim=(0, start), ylim=(len(clients) - 0.5, -0.5), xlabel="seconds", ylabel="client")
    axes.set_yticks(range(len(clients)), [str(client) for client in clients])
    axes.grid(visible=False)
    words = {"download": "download", "train": "evaluate and train", "upload": "upload", "wait": "wait"}
    handles = [Patch(facecolor=_STEP_COLOURS[kind], label=word) for kind, word in words.items()]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=4)


def _parts(steps: list[float | None] | None, end: float) -> list[tuple[str, float, float]]:
    if steps is None:
        return []
    begun, received, sent, stored = steps
    parts = [] if begun is None or received is None else [("download", begun, received)]
    parts.append(("train", received or begun or 0.0, end if sent is None else sent))
    if sent is not None and stored is not None:
        parts += [("upload", sent, stored), ("wait", stored, end)]
    return parts


# --- prototypes ---


def _prototypes(snapshots: Mapping[int, PrototypeSet], names: list[str]) -> list[Picture | None]:
    made = class_map(snapshots)
    if made is None:
        return []
    newest = snapshots[made.rounds[-1]]
    labels = [names[number] if number < len(names) else str(number) for number in made.class_ids]
    found = similarities(newest)
    return [
        Picture(
            name="class-map",
            title="Map of the classes",
            caption=f"Global prototypes after {quantity(made.rounds[-1], 'round')} and their path, as directions on "
            "the plane of the two first principal components of the newest "
            f"({100 * made.explained:.0f} % of its variance).",
            draw=partial(_draw_map, made=made, labels=labels),
            aspect=0.85,
        ),
        Picture(
            name="similarity",
            title="Similarity of the classes",
            caption=f"Cosine between the global prototypes of two classes after {quantity(made.rounds[-1], 'round')}.",
            draw=partial(_draw_similarity, matrix=found, labels=labels),
            aspect=0.85,
        ),
    ]


def _draw_map(axes: Axes, *, made: ClassMap, labels: list[str]) -> None:
    axes.axhline(0, color=PALE, linewidth=0.6)
    axes.axvline(0, color=PALE, linewidth=0.6)
    for row in range(len(labels)):
        axes.plot(made.positions[:, row, 0], made.positions[:, row, 1], color=GREY, linewidth=0.6, alpha=0.7)
    last = made.positions[-1]
    axes.scatter(last[:, 0], last[:, 1], s=22 if len(labels) <= _NAMED else 8, color=BLUE, zorder=3)
    for label, (x, y) in zip(labels, last, strict=True):
        size = 7.5 if len(labels) <= _NAMED else 5
        axes.annotate(clipped(label), (x, y), xytext=(4, 2), textcoords="offset points", fontsize=size)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel="first component", ylabel="second component")
    axes.grid(visible=False)
    axes.tick_params(labelbottom=False, labelleft=False, length=0)


def _draw_similarity(axes: Axes, *, matrix: Any, labels: list[str]) -> None:
    shown = matrix.copy()
    np.fill_diagonal(shown, np.nan)
    image = axes.imshow(shown, cmap="Blues", interpolation="nearest")
    axes.set_facecolor(PALE)  # the diagonal, which is 1
    axes.figure.colorbar(image, ax=axes, shrink=0.85, label="cosine")
    _name_classes(axes.set_yticks, labels)
    _name_classes(partial(axes.set_xticks, rotation=90), labels)
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _name_classes(set_ticks: Any, names: list[str]) -> None:
    if len(names) <= _NAMED:
        set_ticks(range(len(names)), [clipped(name) for name in names])
