"""An analyzer behind HTTP, with the standard library's server:

    ANALYZER=http://localhost:8600/analyze

FastAPI, Starlette:  app.add_route("/analyze", analyze, methods=["POST"])
Flask:               app.add_url_rule("/analyze", view_func=lambda: analyze.wsgi, methods=["POST"])"""

import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

import taskguard


@taskguard.endpoint
def analyze(job):
    text = job.input.get("text")
    if not isinstance(text, str):
        raise taskguard.Failed("no_text", "the input has no text", permanent=True)

    words = text.split()
    total = job.resume or 0
    for number, word in enumerate(words[total:], start=total + 1):
        total = number
        job.report(number / len(words), f"word {number}: {word}")
        job.checkpoint(total)
    return {"words": total}


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8600
    with make_server("localhost", port, analyze.wsgi, server_class=Server) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
