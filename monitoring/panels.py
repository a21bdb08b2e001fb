"""Build panels and dashboards of Grafana (pure).

The source of a panel has its kind, which is the name of a function here, with its title, and the
other arguments. Queries may contain the variables of the dashboard. ``queries`` are queries by
their legend, which may name labels: ``{{namespace}}``. ``unit`` is Grafana's name of a unit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

Panel = dict[str, Any]
Queries = Mapping[str, str]

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
# Labels of targets, which are no facts about the cluster unless a table lists them.
_OF_TARGETS: Final = frozenset(
    {"Time", "__name__", "job", "instance", "endpoint", "container", "namespace", "pod"}
)
_LAST: Final = {"reduceOptions": {"calcs": ["lastNotNull"]}}
_INSTANT: Final = {"instant": True}
_GREEN: Final = ("green", None)


class SourceError(Exception):
    """The source of a panel cannot be understood."""


def dashboard(
    uid: str, title: str, text: str, variables: Mapping[str, str], rows: Sequence[Panel]
) -> dict[str, Any]:
    """Return a dashboard whose rows but the first are collapsed.

    ``variables`` are the metrics that have the values of the variable, by its name, which is that
    of a label.
    """
    numbers, y = count(1), 0
    panels: list[Panel] = []
    for row in rows:
        is_open = not panels
        head = {"id": next(numbers), "type": "row", "title": row["row"], "collapsed": not is_open}
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        y += 1
        placed, end = _placed(map(_built, row["panels"]), y)
        shown = [{"id": next(numbers), **panel} for panel in placed]
        panels.append({**head, "gridPos": place, "panels": [] if is_open else shown})
        if is_open:
            panels += shown
            y = end
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["gpushare"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [{"type": "dashboards", "title": "gpushare", "tags": ["gpushare"]}],
        "templating": {"list": [_prometheus(), *map(_variable, variables, variables.values())]},
        "panels": panels,
    }


def stat(title: str, query: str, text: str = "", unit: str = "none", red: float = 0) -> Panel:
    """Return one number, which is red from ``red`` on, if that is given."""
    return _stat(title, query, text, unit, [_GREEN, ("red", red)] if red else [_GREEN])


def exactly_one(title: str, query: str, text: str = "") -> Panel:
    """Return one number, which is green only if it is 1."""
    return _stat(title, query, text, "none", [("red", None), ("green", 1), ("red", 2)])


def lines(
    title: str,
    queries: Queries,
    text: str = "",
    unit: str = "none",
    *,
    stacked: bool = False,
    limit: float | None = None,
    width: int = 12,
) -> Panel:
    """Return a chart over time; ``limit`` is the end of its axis."""
    drawn = {"fillOpacity": 20, "stacking": {"mode": "normal"}} if stacked else {"fillOpacity": 0}
    end = {} if limit is None else {"max": limit}
    return _panel(
        "timeseries",
        title,
        text,
        _asked(queries),
        width=width,
        defaults={"unit": unit, "min": 0, **end, "custom": drawn},
        options={"tooltip": {"mode": "multi"}},
    )


def days(title: str, queries: Queries, text: str = "", unit: str = "none") -> Panel:
    """Return a chart of the last 30 days with a bar for each day."""
    panel = lines(title, queries, text, unit, stacked=True)
    panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "bars"
    return {**panel, "timeFrom": "30d", "interval": "1d"}


def fractions(title: str, queries: Queries, text: str = "") -> Panel:
    """Return a bar for each series of queries between 0 and 1."""
    steps = _steps([_GREEN, ("orange", 85), ("red", 100)])
    thresholds = {"mode": "percentage", "steps": steps}
    return _panel(
        "bargauge",
        title,
        text,
        _asked(queries, **_INSTANT),
        defaults={"unit": "percentunit", "min": 0, "max": 1, "thresholds": thresholds},
        options={"orientation": "horizontal", "displayMode": "basic", **_LAST},
    )


def table(
    title: str, columns: Sequence[Mapping[str, str]], labels: Mapping[str, str], text: str = ""
) -> Panel:
    """Return a row for each series, the largest value of the first column first.

    ``columns`` have a title, a query and perhaps a unit; one without title is hidden. ``labels``
    are the titles of the labels that the series of all columns have.
    """
    letters = [f"Value #{_letter(number)}" for number in range(len(columns))]
    fields = letters if len(columns) > 1 else ["Value"]
    titles = {field: each.get("title", "") for field, each in zip(fields, columns, strict=True)}
    shown = {name: words for name, words in {**labels, **titles}.items() if words}
    hidden = [name for name in (*sorted(_OF_TARGETS), *titles) if name not in shown]
    first = next(iter(titles.values()))
    return _panel(
        "table",
        title,
        text,
        [{"expr": each["query"], **_INSTANT, "format": "table"} for each in columns],
        overrides=[
            {
                "matcher": {"id": "byName", "options": each["title"]},
                "properties": [{"id": "unit", "value": each["unit"]}],
            }
            for each in columns
            if "unit" in each
        ],
        options={"sortBy": [{"displayName": first, "desc": True}]} if first else {},
        transformations=[
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {"excludeByName": dict.fromkeys(hidden, True), "renameByName": shown},
            },
        ],
    )


_BUILDERS: Final[dict[str, Callable[..., Panel]]] = {
    each.__name__: each for each in (stat, exactly_one, lines, days, fractions, table)
}


def _built(described: Panel) -> Panel:
    kind, *_ = described
    if kind not in _BUILDERS:
        raise SourceError(f"{kind} is no kind of panel: begin with one of {', '.join(_BUILDERS)}")
    rest = {key: value for key, value in described.items() if key != kind}
    try:
        return _BUILDERS[kind](described[kind], **rest)
    except (TypeError, KeyError, AttributeError) as err:
        raise SourceError(f"{kind} {described[kind]!r}: {err}") from err


def _stat(
    title: str, query: str, text: str, unit: str, steps: Sequence[tuple[str, float | None]]
) -> Panel:
    return _panel(
        "stat",
        title,
        text,
        [{"expr": query, **_INSTANT}],
        width=4,
        height=4,
        defaults={"unit": unit, "thresholds": {"mode": "absolute", "steps": _steps(steps)}},
        options={**_LAST, "colorMode": "value"},
    )


def _panel(
    kind: str,
    title: str,
    text: str,
    targets: Iterable[Panel],
    *,
    width: int = 12,
    height: int = 8,
    defaults: Panel | None = None,
    overrides: Sequence[Panel] = (),
    **parts: Any,
) -> Panel:
    return {
        "type": kind,
        "title": title,
        **({"description": text} if text else {}),
        "datasource": _SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": [
            {"refId": _letter(number), "datasource": _SOURCE, **each}
            for number, each in enumerate(targets)
        ],
        "fieldConfig": {"defaults": defaults or {}, "overrides": overrides},
        **parts,
    }


def _asked(queries: Queries, **fields: Any) -> list[Panel]:
    return [{"expr": query, "legendFormat": each, **fields} for each, query in queries.items()]


def _placed(panels: Iterable[Panel], y: int) -> tuple[list[Panel], int]:
    """Return panels from left to right, in lines from ``y`` on, and where the last line ends."""
    placed: list[Panel] = []
    x = height = 0
    for panel in panels:
        size = panel["gridPos"]
        if x + size["w"] > _WIDTH or size["h"] != height:
            x, y, height = 0, y + height, size["h"]
        placed.append({**panel, "gridPos": {"x": x, "y": y, **size}})
        x += size["w"]
    return placed, y + height


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _steps(steps: Iterable[tuple[str, float | None]]) -> list[Panel]:
    return [{"color": color, "value": value} for color, value in steps]


def _prometheus() -> Panel:
    shown = {"name": "datasource", "label": "Prometheus"}
    return {**shown, "type": "datasource", "query": "prometheus"}


def _variable(name: str, metric: str) -> Panel:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }
