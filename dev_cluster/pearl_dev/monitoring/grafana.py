"""A dashboard as Grafana's JSON model, from rows of panels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SCHEMA: Final = 39  # Grafana 11; later ones migrate it as they load it
_COLUMNS: Final = 24
_ACROSS: Final = 3
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "$datasource"}


class Draw(StrEnum):
    """How a panel shows its series."""

    LINES = "lines"
    STACK = "stack"
    BARS = "bars"
    STATES = "states"
    """One strip for each series, coloured by its value."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and what its series are called; `dashed` lines are what is wanted or allowed."""

    expr: str
    legend: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot."""

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    draw: Draw = Draw.LINES
    names: Mapping[int, str] = field(default_factory=dict)
    """What values mean, where they are states."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard: values of a label."""

    name: str
    series: str
    label: str


def dashboard(title: str, uid: str, variables: Sequence[Variable], rows: Sequence[Row]) -> str:
    """The JSON text."""
    model = {
        "title": title,
        "uid": uid,
        "tags": ["pearl"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), *map(_variable, variables)]},
        "panels": list(_panels(rows)),
    }
    return json.dumps(model, indent=1, ensure_ascii=False) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.series}, {variable.label})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for row in rows:
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": []} | _place(
            0, top, _COLUMNS, 1
        )
        number, top = number + 1, top + 1
        width = _COLUMNS // _ACROSS
        for index, panel in enumerate(row.panels):
            line, column = divmod(index, _ACROSS)
            yield {"id": number, **_panel(panel)} | _place(column * width, top + line * _HEIGHT, width, _HEIGHT)
            number += 1
        top += -(-len(row.panels) // _ACROSS) * _HEIGHT


def _place(x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    states = panel.draw is Draw.STATES
    return {
        "type": "state-timeline" if states else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "targets": [_target(index, query) for index, query in enumerate(panel.queries)],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": _custom(panel.draw), **_mappings(panel.names)},
            "overrides": [_dashed(index) for index, query in enumerate(panel.queries) if query.dashed],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi"},
            **({"showValue": "auto", "mergeValues": True} if states else {}),
        },
    }


def _target(index: int, query: Query) -> dict[str, Any]:
    return {"refId": _ref(index), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _custom(draw: Draw) -> dict[str, Any]:
    if draw is Draw.STATES:
        return {"fillOpacity": 70, "lineWidth": 0}
    stacked = draw is not Draw.LINES
    return {
        "drawStyle": "bars" if draw is Draw.BARS else "line",
        "fillOpacity": 40 if stacked else 0,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }


def _mappings(names: Mapping[int, str]) -> dict[str, Any]:
    if not names:
        return {}
    options = {str(value): {"text": text, "index": index} for index, (value, text) in enumerate(names.items())}
    return {"mappings": [{"type": "value", "options": options}]}


def _dashed(index: int) -> dict[str, Any]:
    look: dict[str, Any] = {
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom.fillOpacity": 0,
        "custom.stacking": {"mode": "none", "group": "B"},
    }
    return {
        "matcher": {"id": "byFrameRefID", "options": _ref(index)},
        "properties": [{"id": name, "value": value} for name, value in look.items()],
    }
