"""The pages: each table stands between `<!-- table: NAME -->` and `<!-- end -->`, other text is written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from feddbp_common.cpu_cores import limit_blas_threads
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.report.formatted import FormattedTable
from feddbp_lab.experiments.report.text_formats import as_markdown
from results_page import methods, variants
from results_page.kept import ALONE, LOCAL, Kept

_ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (_ROOT / "docs" / "results.md", _ROOT / "README.md")
_TABLE: Final = re.compile(r"(<!-- table: (\S+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
_PARTS: Final = ("w/o share", "w/o deci.", "w/o hard", "w/o pers.")
_GUIDES: Final = ("0.9 M weights", "0.9 M in float16", "0.3 M", "0.1 M", "0.1 M in float16", "FedDBP, without a guide")
_AFTER_LAST: Final = (*methods.OF_PAPER, "FedDBP, last prototypes", "FedDBP:guided", "FedAvg")
_LOSING_OTHERS: Final = ("FedProto", "FedDBP")
"""Whose clients have only their own prototypes while they fine-tune."""

TABLES: Final[dict[str, Callable[[Kept], FormattedTable]]] = {
    "expectations": methods.expectations,
    "headline": methods.headline,
    "gains-before-fine-tuning": partial(methods.gains, moment=Moment.EXCHANGED, rows=_LOSING_OTHERS),
    "gains-last": partial(methods.gains, moment=Moment.LAST, rows=_AFTER_LAST),
    "shares": partial(methods.shares, moment=Moment.REPORTED),
    "shares-last": partial(methods.shares, moment=Moment.LAST),
    "accuracies": methods.accuracies,
    "others": methods.others,
    "rules": partial(methods.other_rules, ours="{}", theirs=LOCAL),
    "rule-shares": partial(methods.other_rules, ours="{}", theirs=ALONE),
    "rules-alone": partial(methods.other_rules, ours=ALONE, theirs=LOCAL),
    "common-network": methods.common_network,
    "losses": methods.losses,
    "rare": methods.rare,
    "prototypes": variants.prototypes,
    "last-prototypes": variants.last_prototypes,
    "parts": partial(variants.variants, names=_PARTS, head="On CIFAR-100", reference="FedDBP"),
    "traffic": partial(variants.variants, names=_GUIDES, head="Guide", reference=LOCAL),
    "guide-shares": variants.guide_shares,
    "newcomers": variants.newcomers,
    "tuning": variants.tuning,
    "paper": methods.paper,
    "order": methods.order,
}


def rendered(page: str, kept: Kept) -> str:
    """A page with its tables made again; from here on numpy uses one thread in this process."""
    limit_blas_threads()  # as for every report: a bootstrap multiplies thousands of small matrices
    return _TABLE.sub(lambda found: f"{found[1]}\n{as_markdown(TABLES[found[2]](kept))}{found[3]}", page)
