"""An endpoint with an act that is not repeated: ANALYZER=http://localhost:8600

Its input is {"cents": 4200, "ledger": FILE}; a line in that file is a charge."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def charge(payment):  # the provider, which knows no keys
    with open(payment["ledger"], "a") as ledger:
        print(payment["cents"], file=ledger)
    return {"charged": payment["cents"]}

def answer(job):
    begun = (job.get("checkpoint") or {}).get("charging")
    if begun is None:  # the end of this attempt commits the checkpoint
        yield {"checkpoint": {"charging": job["lock_token"]}}
        yield {"error": {"code": "before_charge"}}  # temporary: the next attempt charges
    elif begun + 1 == job["lock_token"]:  # no other attempt was between
        yield {"result": charge(job["input"])}
    else:  # an attempt may have charged, and crashed
        yield {"error": {"code": "charge_uncertain", "message": "look it up at the provider", "permanent": True}}

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
