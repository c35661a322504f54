"""Tables as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from feddbp_lab.experiments.report.formatted import FormattedTable, FormattedValue

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
        "†": r"$\dagger$",
        "•": r"$\bullet$",
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
