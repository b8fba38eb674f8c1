"""One JSON object per log line: time, level, logger, message, and whatever the call gave as `extra`."""

from __future__ import annotations

import json
import logging
from typing import Final

from pearl_operator.clock import to_rfc3339

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "time": to_rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in record.__dict__.items() if key not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure() -> None:
    """Sends all logging to stderr as JSON lines; called once, by `main`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for talkative in ("kopf", "uvicorn"):
        logging.getLogger(talkative).setLevel(logging.WARNING)


def set_level(name: str) -> None:
    """Of the operator's own lines; at `debug` libraries would log bodies, Secrets among them."""
    logging.getLogger("pearl").setLevel(name.upper())
