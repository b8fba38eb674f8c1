"""The instant vectors of Prometheus' query API; pure."""

from __future__ import annotations

import json
import math
from typing import Any

from pearl_operator.errors import Unavailable


def samples_in(raw: bytes) -> list[tuple[dict[str, Any], float]]:
    """Labels and value of each series; NaN and infinity are no samples.

    Raises:
        Unavailable: The answer is none of Prometheus' query API.
    """
    try:
        result = json.loads(raw)["data"]["result"]
        found = [(dict(item["metric"]), float(item["value"][1])) for item in result]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Unavailable(f"Prometheus: unexpected answer ({error!r})") from error
    return [(metric, value) for metric, value in found if math.isfinite(value)]
