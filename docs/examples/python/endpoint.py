"""An endpoint with an act that is not repeated: ANALYZER=http://localhost:8600

Its input is {"cents": 4200, "ledger": FILE}; a line in that file is a charge."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def charge(payment, key):  # the provider
    with open(payment["ledger"], "a") as ledger:
        print(key, payment["cents"], file=ledger)
    return {"charged": payment["cents"]}

def answer(job):
    act = job.get("effects", {}).get("charge")
    if act is None:  # the worker commits a marker, and calls again
        yield {"effect": "charge"}
    elif act["state"] == "uncertain":  # FAILED, until an operator answers
        yield {"error": {"code": "charge_uncertain", "message": "an earlier attempt may have charged"}}
    else:
        if act["state"] == "go":
            act["result"] = charge(job["input"], act["key"])
            yield {"effect": "charge", "done": act["result"]}
        yield {"result": act["result"]}

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        for line in answer(job):
            self.wfile.write(json.dumps(line).encode() + b"\n")

server = ThreadingHTTPServer(("localhost", int(sys.argv[1]) if sys.argv[1:] else 8600), Handler)
print(server.server_port, flush=True)
server.serve_forever()
