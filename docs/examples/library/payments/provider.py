"""A payment provider to try the example with; it prints each act that it does: python3 provider.py PORT"""
import json, sys, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

receipts = {}

class Provider(BaseHTTPRequestHandler):
    def do_POST(self):  # /charges, with the key in a header: done once
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        name = (self.path, self.headers["Idempotency-Key"])
        if name not in receipts:
            receipts[name] = {"id": f"{self.path[1:-1]}_{len(receipts)}"}
            print(self.path, name[1], body, flush=True)
        self.answer(receipts[name])

    def do_GET(self):  # /charges?key=KEY: the receipt, or {}
        path, _, query = self.path.partition("?")
        self.answer(receipts.get((path, urllib.parse.parse_qs(query)["key"][0]), {}))

    def answer(self, receipt):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(receipt).encode())

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Provider).serve_forever()
