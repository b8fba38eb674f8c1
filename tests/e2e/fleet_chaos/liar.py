"""A Prometheus that lies, as a program for a pod: what it answers is chosen by the first word of its arguments."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 9090
LIES = {"nan": "NaN", "huge": "1e300", "negative": "-5", "garbage": None}


class Liar(BaseHTTPRequestHandler):
    """Answers every query with one series of nonsense, or with no JSON at all."""

    def do_GET(self) -> None:
        """A query."""
        self._lie()

    def do_POST(self) -> None:
        """A long query."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._lie()

    def _lie(self) -> None:
        value = LIES[sys.argv[1]]
        series = [{"metric": {"pod": "nobody", "model_name": "none"}, "value": [0, value]}]
        said = {"status": "success", "data": {"resultType": "vector", "result": series}}
        body = b"<html>502 Bad Gateway</html>" if value is None else json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", PORT), Liar).serve_forever()  # noqa: S104 - a pod's
