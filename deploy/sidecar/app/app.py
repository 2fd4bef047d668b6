"""An analysis in Python, behind taskguard's worker: POST /analyze. Standard library alone."""
import json, os, signal, sys, threading, time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

slots = threading.BoundedSemaphore(int(os.environ.get("APP_SLOTS", "10")))  # as many as the worker sends
newest = {}  # analysis -> the highest lock token of the jobs of it that run here
lock = threading.Lock()

class Refused(Exception): pass  # a status and why: 4xx is for good, but 408, 409, 425, 429; all else for now

def analyze(job):  # yours goes here
    text = job["input"].get("text") if isinstance(job["input"], dict) else None
    if not isinstance(text, str):
        raise Refused(422, "the input has no text")
    time.sleep(float(os.environ.get("APP_SECONDS", "0")))  # it thinks
    words = Counter(text.lower().split())
    return {"words": words.total(), "top": [{"word": w, "count": n} for w, n in words.most_common(3)]}

def run(job):
    analysis, token = job["analysis_id"], job["lock_token"]
    with lock:  # two jobs of one analysis: the one with the higher token holds the lock
        if token < newest.get(analysis, 0):
            raise Refused(409, "superseded")
        newest[analysis] = token
    try:
        print(json.dumps({"message": "begins", "analysis_id": analysis, "lock_token": token}), flush=True)
        return analyze(job)  # what it changes elsewhere, it should change under this token
    finally:
        with lock:
            if newest.get(analysis) == token:
                del newest[analysis]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, "")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/analyze":
            return self.answer(404, "no such path")
        if not slots.acquire(blocking=False):
            return self.answer(503, "all slots are taken")
        try:
            self.answer(200, run(json.loads(body)))
        except Refused as refused:
            self.answer(*refused.args)
        finally:
            slots.release()
    def answer(self, status, body):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    log_message = lambda *_: None  # one line a job is enough, and it holds no input

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # process 1 of a container has no default
    server = ThreadingHTTPServer((os.environ.get("APP_HOST", "127.0.0.1"), int(os.environ.get("APP_PORT", "9000"))), Handler)
    print(json.dumps({"message": "serving", "port": server.server_port}), flush=True)
    server.serve_forever()
