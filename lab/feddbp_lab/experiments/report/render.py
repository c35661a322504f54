"""Sheets as Markdown, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator
from typing import Any, Final

from feddbp_lab.experiments.plan import Part, Place, Plan
from feddbp_lab.experiments.report.outcomes import Outcomes, Spread
from feddbp_lab.experiments.report.paper import printed_in
from feddbp_lab.experiments.report.tables import Sheet, Word

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


def as_markdown(sheet: Sheet) -> str:
    lines = [
        [*sheet.row_heads, *sheet.full_heads],
        [*("---" for _ in sheet.row_heads), *("---:" for _ in sheet.full_heads)],
        *([*labels, *map(_markdown_word, words)] for labels, words in sheet.rows),
    ]
    return "".join(f"| {' | '.join(_markdown_safe(cell) for cell in line)} |\n" for line in lines)


def _markdown_safe(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _markdown_word(word: Word) -> str:
    if not word.text:
        return ""
    if word.bold:
        return f"**{word.text}**"
    return f"<u>{word.text}</u>" if word.underlined else word.text


def tex_escaped(text: str) -> str:
    return text.translate(_TEX)


def as_latex(sheet: Sheet, *, caption: str, label: str) -> str:
    """A table that needs the package booktabs and nothing else."""
    labels = len(sheet.row_heads)
    top = ["", *(f"\\multicolumn{{{group.width}}}{{c}}{{{tex_escaped(group.text)}}}" for group in sheet.groups)]
    top[:1] = [""] * labels if any(sheet.heads) else list(map(tex_escaped, sheet.row_heads))
    rules, first = [], labels + 1
    for group in sheet.groups:
        rules.append(f"\\cmidrule(lr){{{first}-{first + group.width - 1}}}")
        first += group.width
    second = [*map(tex_escaped, sheet.row_heads), *map(tex_escaped, sheet.heads)]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{tex_escaped(caption)}}}",
        f"\\label{{{label}}}",
        f"\\begin{{tabular}}{{{'l' * labels}{'r' * len(sheet.heads)}}}",
        r"\toprule",
        _tex_line(top),
        *((" ".join(rules), _tex_line(second)) if any(sheet.heads) else ()),
        r"\midrule",
        *(_tex_line([*map(tex_escaped, row), *map(_tex_word, words)]) for row, words in sheet.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_line(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _tex_word(word: Word) -> str:
    text = tex_escaped(word.text)
    if word.bold:
        return f"\\textbf{{{text}}}"
    return f"\\underline{{{text}}}" if word.underlined else text


def as_html(sheet: Sheet) -> str:
    second = any(sheet.heads)
    top = [_html_head(head, kind="label", rows=2 if second else 1) for head in sheet.row_heads]
    top.extend(_html_head(group.text, kind="group", columns=group.width) for group in sheet.groups)
    heads = [top, *([list(map(_html_head, sheet.heads))] if second else [])]
    body = [
        [*(_html_head(label, kind="label") for label in labels), *map(_html_word, words)]
        for labels, words in sheet.rows
    ]
    return f"<table>\n<thead>\n{_html_rows(heads)}</thead>\n<tbody>\n{_html_rows(body)}</tbody>\n</table>\n"


def _html_rows(rows: list[list[str]]) -> str:
    return "".join(f"<tr>{''.join(cells)}</tr>\n" for cells in rows)


def _html_head(text: str, *, kind: str = "", rows: int = 1, columns: int = 1) -> str:
    given = {"class": kind, "rowspan": rows if rows > 1 else "", "colspan": columns if columns > 1 else ""}
    attributes = "".join(f' {name}="{value}"' for name, value in given.items() if value)
    return f"<th{attributes}>{html.escape(text)}</th>"


def _html_word(word: Word) -> str:
    text = html.escape(word.text)
    if word.bold:
        text = f"<b>{text}</b>"
    if word.underlined:
        text = f"<u>{text}</u>"
    return f'<td class="faint">{text}</td>' if word.faint else f"<td>{text}</td>"


def as_csv(plan: Plan, outcomes: Outcomes) -> str:
    """Accuracies in per cent, unrounded; an axis that a part does not have is empty there."""
    lines = [line for part in plan.parts for line in _lines(part, outcomes)]
    # axes first, whatever part they are of
    axes = (axis.name for part in plan.parts for axis in part.axes)
    columns = dict.fromkeys(("part", *axes, *(name for line in lines for name in line)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _lines(part: Part, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    for place in part.places([axis.name for axis in part.axes]):
        measured = outcomes.at(part.point(place))
        counting = {result.inference for result in measured.results}
        for rule in measured.rules() or [""]:
            yield {
                "part": part.title,
                **{name: part.axis(name).values[index].key for name, index in place.items()},
                "rule": rule,
                "counts": "yes" if rule in counting else "no",
                "seeds": measured.seeds,
                "done": len(measured.results),
                "failed": measured.failed,
                **_spread("best", measured.best(rule)),
                **_spread("last", measured.last(rule)),
                "difference": _difference(part, outcomes, place, rule),
                **_paper(part, place),
            }


def _spread(name: str, spread: Spread | None) -> dict[str, Any]:
    if spread is None:
        return {f"{name}_mean": "", f"{name}_std": ""}
    return {
        f"{name}_mean": spread.mean,
        f"{name}_std": "" if spread.deviation is None else spread.deviation,
        **{f"{name}_seed_{seed}": value for seed, value in spread.of_seed.items()},
    }


def _difference(part: Part, outcomes: Outcomes, place: Place, rule: str) -> float | str:
    """Of the best to that of the row others are compared with, in the same column.

    What counts is compared with what counts there, whatever its rule; any other rule with the same one.
    """
    reference = next((row for row in part.places(part.report.rows) if part.key(row) == part.report.compare), None)
    if reference is None or {**place, **reference} == place:
        return ""
    measured = outcomes.at(part.point(place))
    counts = any(result.inference == rule for result in measured.results)
    here, there = measured.best(rule), outcomes.at(part.point({**place, **reference})).best(None if counts else rule)
    above = here.above(there) if here and there else None
    return "" if above is None else above


def _paper(part: Part, place: Place) -> dict[str, Any]:
    report = part.report
    across = [*report.columns, *([report.x] if report.x else [])]
    row, column = ({name: place[name] for name in names} for names in (report.rows, across))
    value = printed_in(report.paper, part.paper_key(row), part.paper_key(column))
    if value is None:
        return {"paper_mean": "", "paper_std": ""}
    return {"paper_mean": value.mean, "paper_std": "" if value.deviation is None else value.deviation}
