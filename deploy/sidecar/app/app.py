"""An analysis in Python, behind taskguard's worker: POST /analyze. Standard library alone."""
import itertools, json, os, signal, sys, threading, time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

slots = threading.BoundedSemaphore(int(os.environ.get("APP_SLOTS", "10")))  # as many as the worker sends
newest = {}  # analysis -> the highest lock token of the jobs of it that run here
lock = threading.Lock()

class Refused(Exception): pass  # a status and why: 4xx is for good, but 408, 409, 425, 429; all else for now

def analyze(job):  # yours goes here: it yields reports, and returns the result
    text = job["input"].get("text") if isinstance(job["input"], dict) else None
    if not isinstance(text, str):
        raise Refused(422, "the input has no text")
    words = text.lower().split()
    state = job.get("checkpoint") or {"done": 0, "counts": "{}"}  # what an earlier attempt reported
    done, counts = state["done"], Counter(json.loads(state["counts"]))
    while done < len(words):
        part = words[done:done + max(1, len(words) // 10)]
        time.sleep(float(os.environ.get("APP_SECONDS", "0")) * len(part) / len(words))  # it thinks
        counts.update(part)
        done += len(part)
        # The counts are JSON in a string: a word like __x__ cannot be the name of a field.
        yield {"progress": done / len(words), "checkpoint": {"done": done, "counts": json.dumps(counts)}}
    return {"words": counts.total(), "top": [{"word": w, "count": n} for w, n in counts.most_common(3)]}

def run(job):  # yields the lines of the answer
    analysis, token = job["analysis_id"], job["lock_token"]
    with lock:  # two jobs of one analysis: the one with the higher token holds the lock
        if token < newest.get(analysis, 0):
            raise Refused(409, "superseded")
        newest[analysis] = token
    try:
        done = (job.get("checkpoint") or {}).get("done", 0)
        print(json.dumps({"message": "begins", "analysis_id": analysis, "lock_token": token, "done": done}), flush=True)
        yield {"result": (yield from analyze(job))}  # what it changes elsewhere, it should change under this token
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
            lines = run(json.loads(body))
            first = next(lines)  # a refusal is a status, so it comes before the first line
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.end_headers()
            for line in itertools.chain([first], lines):
                self.wfile.write(json.dumps(line).encode() + b"\n")  # fails when the worker has hung up
        except Refused as refused:
            self.answer(*refused.args)
        finally:
            slots.release()
    def answer(self, status, body):
        data = body.encode()
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
