"""Tables as Markdown and LaTeX, and all results of a plan as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, Final

from feddbp_lab.experiments.plan import Coordinates, Part, Plan
from feddbp_lab.experiments.report.outcomes import Outcomes, SeedValues
from feddbp_lab.experiments.report.paper import paper_value
from feddbp_lab.experiments.report.tables import FormattedTable, FormattedValue

_TEX: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "–": "--",
        "−": "$-$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "Δ": r"$\Delta$",
        "α": r"$\alpha$",
        "η": r"$\eta$",
        "τ": r"$\tau$",
        "λ": r"$\lambda$",
    }
)


def as_markdown(table: FormattedTable) -> str:
    lines = [
        [*table.row_heads, *table.full_heads],
        [*("---" for _ in table.row_heads), *("---:" for _ in table.full_heads)],
        *([*row.labels, *map(_markdown_value, row.values)] for row in table.rows),
    ]
    return "".join(f"| {' | '.join(map(_markdown_escaped, line))} |\n" for line in lines)


def _markdown_escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _markdown_value(value: FormattedValue) -> str:
    if not value.text:
        return ""
    if value.bold:
        return f"**{value.text}**"
    return f"<u>{value.text}</u>" if value.underlined else value.text


def as_latex(table: FormattedTable, *, caption: str, label: str) -> str:
    """A table that needs no package but booktabs."""
    labels = len(table.row_heads)
    row_heads = list(map(tex_escaped, table.row_heads))
    groups = [f"\\multicolumn{{{group.width}}}{{c}}{{{tex_escaped(group.title)}}}" for group in table.groups]
    heads = [_tex_line([*row_heads, *groups])]
    if table.has_column_heads:
        heads = [
            _tex_line([*[""] * labels, *groups]),
            " ".join(_group_rules(table)),
            _tex_line([*row_heads, *map(tex_escaped, table.column_heads)]),
        ]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{tex_escaped(caption)}}}",
        f"\\label{{{label}}}",
        f"\\begin{{tabular}}{{{'l' * labels}{'r' * len(table.column_heads)}}}",
        r"\toprule",
        *heads,
        r"\midrule",
        *(_tex_line([*map(tex_escaped, row.labels), *map(_tex_value, row.values)]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _group_rules(table: FormattedTable) -> Iterator[str]:
    """A rule below the title of each group."""
    first = len(table.row_heads) + 1
    for group in table.groups:
        yield f"\\cmidrule(lr){{{first}-{first + group.width - 1}}}"
        first += group.width


def _tex_line(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _tex_value(value: FormattedValue) -> str:
    text = tex_escaped(value.text)
    if value.bold:
        return f"\\textbf{{{text}}}"
    return f"\\underline{{{text}}}" if value.underlined else text


def tex_escaped(text: str) -> str:
    return text.translate(_TEX)


def as_csv(plan: Plan, outcomes: Outcomes) -> str:
    """Accuracies in per cent, unrounded; an axis that a part does not have is empty there."""
    lines = [line for part in plan.parts for line in _csv_lines(part, outcomes)]
    # the axes of all parts before the other columns
    axes = (axis.name for part in plan.parts for axis in part.axes)
    columns = dict.fromkeys(("part", *axes, *(name for line in lines for name in line)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_lines(part: Part, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    for coordinates in part.combinations([axis.name for axis in part.axes]):
        result = outcomes.at(part.point(coordinates))
        own_rules = {cell.inference for cell in result.results}
        for rule in result.rules() or [""]:
            yield {
                "part": part.title,
                **{name: part.axis(name).values[index].key for name, index in coordinates.items()},
                "rule": rule,
                "counts": "yes" if rule in own_rules else "no",
                "seeds": result.seeds,
                "done": len(result.results),
                "failed": result.failed,
                **_statistics("best", result.best(rule)),
                **_statistics("last", result.last(rule)),
                "difference": _difference(part, outcomes, coordinates, rule),
                **_paper(part, coordinates),
            }


def _statistics(name: str, values: SeedValues | None) -> dict[str, Any]:
    if values is None:
        return {f"{name}_mean": "", f"{name}_std": ""}
    return {
        f"{name}_mean": values.mean,
        f"{name}_std": "" if values.deviation is None else values.deviation,
        **{f"{name}_seed_{seed}": value for seed, value in values.by_seed.items()},
    }


def _difference(part: Part, outcomes: Outcomes, coordinates: Coordinates, rule: str) -> float | str:
    """Difference of the best accuracy to that of the row others are compared with, in the same column.

    A method's own rule is compared with the other method's own rule, any other rule with the same one.
    """
    reference = next((row for row in part.combinations(part.report.rows) if part.key(row) == part.report.compare), None)
    if reference is None or {**coordinates, **reference} == coordinates:
        return ""
    result = outcomes.at(part.point(coordinates))
    compared = outcomes.at(part.point({**coordinates, **reference}))
    is_own_rule = any(cell.inference == rule for cell in result.results)
    best, compared_best = result.best(rule), compared.best(None if is_own_rule else rule)
    difference = best.difference_to(compared_best) if best and compared_best else None
    return "" if difference is None else difference


def _paper(part: Part, coordinates: Coordinates) -> dict[str, Any]:
    report = part.report
    across = [*report.columns, *([report.x] if report.x else [])]
    row, column = ({name: coordinates[name] for name in names} for names in (report.rows, across))
    value = paper_value(report.paper, part.paper_key(row), part.paper_key(column))
    if value is None:
        return {"paper_mean": "", "paper_std": ""}
    return {"paper_mean": value.mean, "paper_std": "" if value.deviation is None else value.deviation}
