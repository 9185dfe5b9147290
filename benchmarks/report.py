"""The table for people, the JSON for machines, and the plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.growth import Curve, Point
from benchmarks.harness import Outcome
from benchmarks.workspace import machine

RESULTS = Path(__file__).parent / "results"


def print_table(outcomes: Sequence[Outcome], console: Console) -> None:
    """One line a case: ours, reference, ratio with its spread, goal, met or not."""
    table = Table(title="ratio = time of the reference / our time; above 1 we are faster")
    for name in ("case", "reference"):
        table.add_column(name)
    for name in ("ours", "reference", "ratio", "quartiles", "goal", "met"):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.case, outcome.reference,
            f"{outcome.ours_median:.3g} {outcome.unit}",
            f"{outcome.reference_median:.3g} {outcome.unit}",
            f"{outcome.ratio:.3g}", f"{outcome.low:.3g} to {outcome.high:.3g}",
            f"{outcome.goal:.3g}", "yes" if outcome.met else "[bold red]no",
        )
    console.print(table)


def print_growth(curves: Sequence[Curve], console: Console) -> None:
    """One line a curve: seconds at each size, the slope, the peaks of memory."""
    table = Table(title="growth: 1 is linear, 0 is constant")
    for name in ("work", "size", "seconds", "slope", "peak MiB"):
        table.add_column(name)
    for curve in curves:
        table.add_row(
            curve.name,
            " ".join(_size(curve, point) for point in curve.points),
            " ".join(f"{point.seconds:.3g}" for point in curve.points),
            f"{curve.slope:.2f}",
            " ".join(f"{point.peak_mib:.0f}" for point in curve.points),
        )
    console.print(table)


def growth_table(curves: Sequence[Curve]) -> str:
    """The same for ``docs/performance.md``; costs in units of the smallest one."""
    lines = ["| work | sizes | cost | slope | peak MiB |", "|---|---|---|--:|---|"]
    for curve in curves:
        sizes = ", ".join(_size(curve, point) for point in curve.points)
        first = curve.points[0].seconds
        costs = ", ".join(f"{point.seconds / first:.3g}" for point in curve.points)
        peaks = ", ".join(f"{point.peak_mib:.0f}" for point in curve.points)
        lines.append(f"| {curve.name} | {sizes} | {costs} | {curve.slope:.2f} | {peaks} |")
    return "\n".join(lines) + "\n"


def _size(curve: Curve, point: Point) -> str:
    if len({point.messages for point in curve.points}) == 1:
        return f"{point.queues} queues"
    return f"{point.messages / 1e6:g} M"


def markdown_table(outcomes: Sequence[Outcome]) -> str:
    """The same table for ``docs/performance.md``; ratios only."""
    lines = ["| case | reference | ratio | quartiles | goal | met |", "|---|---|--:|--:|--:|---|"]
    lines += [
        f"| {outcome.case} | {outcome.reference} | {outcome.ratio:.3g} | "
        f"{outcome.low:.3g} to {outcome.high:.3g} | {outcome.goal:.3g} | "
        f"{'yes' if outcome.met else '**no**'} |"
        for outcome in outcomes
    ]
    return "\n".join(lines) + "\n"


def write_json(
    outcomes: Sequence[Outcome], curves: Sequence[Curve], *, quick: bool
) -> Path:
    """``results/latest.json``: the cases, with versions and machine beside them."""
    path = RESULTS / "latest.json"
    content = {
        "quick": quick,
        "machine": machine(),
        "cases": [outcome.as_json() for outcome in outcomes],
        "growth": [curve.as_json() for curve in curves],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def draw_ratios(outcomes: Sequence[Outcome], path: Path) -> None:
    """A bar for each case: its ratio in units of its goal, so that 1 is where it must end."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 + 0.42 * len(outcomes)))
    places = range(len(outcomes))
    scaled = [outcome.ratio / outcome.goal for outcome in outcomes]
    spread = [
        [(outcome.ratio - outcome.low) / outcome.goal for outcome in outcomes],
        [(outcome.high - outcome.ratio) / outcome.goal for outcome in outcomes],
    ]
    colours = ["#2a7f62" if outcome.met else "#b03a2e" for outcome in outcomes]
    axes.barh(list(places), scaled, color=colours, xerr=spread, ecolor="#555555")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(list(places), [outcome.case for outcome in outcomes], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("measured ratio / goal (1 = the goal)")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_growth(curves: Sequence[Curve], path: Path) -> None:
    """Cost against size on logarithmic scales, beside a line that grows as the size does."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    by_messages = [curve for curve in curves if "by queues" not in curve.name]
    for curve in by_messages:
        first = curve.points[0].seconds
        sizes = [point.messages for point in curve.points]
        costs = [point.seconds / first for point in curve.points]
        axes.plot(sizes, costs, marker="o", label=f"{curve.name} ({curve.slope:.2f})")
    sizes = [point.messages for point in by_messages[0].points]
    axes.plot(sizes, [size / sizes[0] for size in sizes], "--", color="#888888", label="linear (1)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("messages")
    axes.set_ylabel("cost / cost at the smallest size")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
