"""A web server on this machine, whose faults a test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """A web server whose behaviour each test sets."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    honours_range: bool = True
    break_after: list[int] = field(default_factory=list)
    """Bytes of the body that each of the first responses sends before the connection drops."""
    statuses: list[int] = field(default_factory=list)
    """Error codes of the first responses."""
    shifted: int = 0
    """Offset by which the response to a range starts too late."""
    ranges: list[str | None] = field(default_factory=list)
    """The Range header of each request."""


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested = self.headers.get("Range")
            state.ranges.append(requested)
            content = state.files.get(self.path)
            if state.statuses or content is None:
                self.send_error(state.statuses.pop(0) if state.statuses else 404)
                return
            start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested and state.honours_range else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                start += state.shifted
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + state.break_after.pop(0) if state.break_after else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()
