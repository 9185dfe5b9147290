"""``python -m benchmarks``: measure every case and print the table."""

from __future__ import annotations

import argparse
import os
import re
import sys

from rich.console import Console

from benchmarks.growth import Curve, measure_growth
from benchmarks.harness import Case, Outcome, run_case
from benchmarks.report import (
    RESULTS,
    draw_growth,
    draw_ratios,
    growth_table,
    markdown_table,
    print_growth,
    print_table,
    write_json,
)
from benchmarks.workspace import Workspace

QUICK_TURNS = 3


def all_cases() -> list[Case]:
    """The cases in the order in which they are shown."""
    from benchmarks import (
        broker_cases,
        format_cases,
        spark_read_cases,
        spark_write_cases,
        writer_cases,
    )

    modules = (format_cases, writer_cases, spark_read_cases, spark_write_cases, broker_cases)
    return [case for module in modules for case in module.CASES]


def main() -> int:
    """Run the cases whose name matches; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller data, three turns")
    parser.add_argument("--only", default="", help="a regular expression that the name must match")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    cases = [case for case in all_cases() if re.search(arguments.only, case.name)]
    if arguments.list:
        for case in cases:
            console.print(f"{case.name}  (against {case.reference}; goal {case.goal:.3g})")
        return 0
    outcomes: list[Outcome] = []
    curves: list[Curve] = []
    workspace = Workspace(quick=arguments.quick)
    try:
        for case in cases:
            console.print(f"measuring: {case.name}", style="dim")
            most_turns = QUICK_TURNS if arguments.quick else None
            outcomes.append(run_case(case, workspace, most_turns))
        if re.search(arguments.only, "growth"):
            console.print("measuring: growth", style="dim")
            # Each of these is the whole life of a process, the loading of loops included.
            os.environ["RMQLOG_COMPILE"] = "auto"
            curves = measure_growth(workspace)
    finally:
        workspace.close()
        _report(outcomes, curves, console, quick=arguments.quick)
    return 0 if all(outcome.met for outcome in outcomes) else 1


def _report(
    outcomes: list[Outcome], curves: list[Curve], console: Console, *, quick: bool
) -> None:
    """Whatever was measured, for people and for machines."""
    RESULTS.mkdir(exist_ok=True)
    if outcomes:
        print_table(outcomes, console)
        draw_ratios(outcomes, RESULTS / "ratios.png")
    if curves:
        print_growth(curves, console)
        draw_growth(curves, RESULTS / "growth.png")
    (RESULTS / "latest.md").write_text(f"{markdown_table(outcomes)}\n{growth_table(curves)}")
    console.print(f"written: {write_json(outcomes, curves, quick=quick)}")


if __name__ == "__main__":
    sys.exit(main())
