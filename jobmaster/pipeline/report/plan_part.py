"""The plan on the page of the report: the model beside the measurement, the proposal with its error, wait against buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobmaster.pipeline.report import html, svg
from jobmaster.units import rounded_us

_FORMAT = 2
"""Version of the plan's document that this page knows."""
_STATUS = {"met": "yes", "not met": "no"}


def plan_section(plan: Mapping[str, Any], durations: svg.Scale) -> tuple[str, list[str]]:
    """Explanation and cards of the latest plan of the lake.

    Args:
        durations: scale of the waits.
    """
    if plan.get("format") != _FORMAT:
        return "It was made by another version of this program. Make a new plan.", []
    groups = plan["groups"]
    cards = [
        html.card(_model(groups), "The model beside what was measured, in the present configuration"),
        html.card(_proposal(groups), "Proposed, and predicted"),
    ]
    for one in groups:
        cards.append(html.card(_curve(one, plan["quantile"], durations), f"Waiting against buckets: {_name(one)}"))
    if plan["diff"]:
        cards.append(html.card(html.code(plan["diff"]), "Difference to the present configuration"))
    return plan["said"], [*cards, html.card(html.code(plan["yaml"]), "buckets.yaml")]


def _model(groups: list[Mapping[str, Any]]) -> str:
    columns = ["lane / priority", "jobs", "measured p50", "model p50", "measured p99", "model p99", "delay",
               "unexplained", "the model"]  # fmt: skip
    lines = [
        [
            _name(one),
            f"{one['jobs']:,}".replace(",", " "),
            *(rounded_us(one[side][name]) for name in ("p50", "p99") for side in ("measured", "model")),
            rounded_us(one["delay_us"]),
            rounded_us(one["unexplained_us"]),
            "agrees" if one["agrees"] else f"is off by x{one['difference']:.2g}",
        ]
        for one in groups
    ]
    return html.table(columns, lines)


def _proposal(groups: list[Mapping[str, Any]]) -> str:
    columns = ["lane / priority", "objective", "load", "buckets now", "p99 as it is", "buckets", "slots", "p50", "p99",
               "busy", "error", "objective met"]  # fmt: skip
    lines = [
        [
            _name(one),
            rounded_us(one["objective_us"]),
            f"x{one['factor']:.2g}",
            str(one["present"]),
            rounded_us(one["as_is"]["p99"]),
            str(one["buckets"]),
            str(one["slots"]),
            rounded_us(one["waits_us"]["p50"]),
            rounded_us(one["waits_us"]["p99"]),
            f"{one['utilisation']:.0%}",
            "-" if one["backtest"] is None else f"x{one['backtest']['factor']:.2g}",
            _STATUS.get(one["status"], one["status"]),
        ]
        for one in groups
    ]
    return html.table(columns, lines)


def _curve(one: Mapping[str, Any], quantile: float, durations: svg.Scale) -> str:
    curve = [(float(buckets), max(float(wait_us), 1.0)) for buckets, wait_us in one["curve"]]
    objective = {f"objective {rounded_us(one['objective_us'])}": float(one["objective_us"])}
    x = svg.Scale(lambda count: f"{count:.0f} buckets", labels=[buckets for buckets, _ in curve])
    series = {f"p{quantile * 100:g} of waiting": curve}
    return html.figure(lambda canvas: svg.lines(series, x, durations, goals=objective, canvas=canvas))


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['lane']} / {one['priority']}"
