"""A server on this machine that speaks as a judge does, or fails."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Says what it is told to, one reply a request and the last one again and again; keeps what it was asked."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.asked = []
        self.headers = []
        self.paths = []
        self.times = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.times.append(time.monotonic())
                outer.paths.append(self.path)
                outer.headers.append(dict(self.headers))
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                status, body, headers = reply(self) if callable(reply) else reply
                # Whoever has not waited is gone.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body.encode())))
                    self.end_headers()
                    self.wfile.write(body.encode())

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def says(content, status=200, **headers):
    return status, json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}), headers


def fails(status, body="", **headers):
    return status, body, headers
