"""A stand-in for FastAPI in the tests, and a server for it: python3 fastapi.py MODULE PORT runs MODULE's app."""

import asyncio
import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FastAPI:
    def __init__(self):
        self.routes = {}

    def get(self, path, **_):
        return lambda function: self.routes.setdefault(("GET", path), answers_json(function))

    def post(self, path, **_):
        return lambda function: self.routes.setdefault(("POST", path), answers_json(function))

    def add_route(self, path, application, methods):
        for method in methods:
            self.routes[method, path] = application


def answers_json(function):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(function()).encode()})

    return application


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asyncio.run(self.run(self.rfile.read(int(self.headers.get("Content-Length", 0)))))

    do_GET = do_POST

    async def run(self, body):
        messages = asyncio.Queue()
        await messages.put({"type": "http.request", "body": body, "more_body": False})
        await app.routes[self.command, self.path]({"type": "http"}, messages.get, self.send)

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.send_response(message["status"])
            for name, value in message["headers"]:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
        else:
            self.wfile.write(message["body"])


if __name__ == "__main__":
    app = importlib.import_module(sys.argv[1]).app
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
