"""Text that another party could choose to break a log, a terminal, a page or a picture, and results that have it."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path

from lab_samples import results

from feddbp_common.artifacts import METRICS_NAME, SUMMARY_NAME
from feddbp_lab.results.run_results import RunResults

FOREIGN = (
    "net[/b]",
    "[link=https://example.org]net[/link]",
    "[bold red]the run finished[/]",
    r"$\frac{$",
    "$",
    "_hidden",
    "line\n12:00:00 INFO    the run finished",
    "\x1b[2J\x1b]0;title\x07",
    "\u202e gnp.exe",
    "\u2066isolate\u2069",
    "\x00\x08\r\t\x7f\x9b31m",
    "\ud800",
    ":smile: :warning:",
    "<script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "' onmouseover='window.pwned=1",
    "</svg></figure></pre></title><b>net</b><!--",
    "--><b>net</b>",
    "javascript:window.pwned=1",
    "&lt;b&gt; &#60;",
    "{{ 7 * 7 }} {% raw %}",
    "%s %d {0} {name}",
    "e\u0301" * 400,
    "x" * 100_000,
)


def results_with(*texts: str, directory: Path) -> RunResults:
    """The results of a run, each of whose clients has one of the texts as names of its model and of its losses."""
    sample = results(clients=max(len(texts), 3))
    of_client = dict(enumerate(islice(cycle(texts), max(len(texts), 3))))
    summary = sample.summary
    for client in summary["per_client"]:
        client["architecture"] = client["name"] = of_client[client["client"]]
        client.update(parameters=1, test_samples=10, accuracy=0.5)
    summary["outcome"], summary["reason"], summary["run_id"] = "failed", texts[0], texts[len(texts) // 2]
    summary["rounds"] = summary["completed_rounds"]
    summary["config"] = {"method": "feddbp", "data": {"dataset": "digits"}}
    for line in sample.metrics:
        line["seconds"] = {"evaluate": 0.1, "train": 1.0, "collect": 0.1}
        line["inference"], line["accuracies"] = "head", {"head": line["accuracy"]}
        line["losses"] = {of_client[line["client"]]: 1.0, f"l_{of_client[line['client']]}": 2.0}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SUMMARY_NAME).write_text(json.dumps(summary))
    (directory / METRICS_NAME).write_text("".join(f"{json.dumps(line)}\n" for line in sample.metrics))
    return RunResults.read(directory)
