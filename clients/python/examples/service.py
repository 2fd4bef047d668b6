"""An analyzer behind HTTP, here on the standard library's server: ANALYZER=http://localhost:8600/analyze

Its input is {"text": "…", "outbox": FILE}; a line in that file is a mail."""

import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

import taskguard


def send_mail(outbox, text, key):  # the provider
    with open(outbox, "a") as file:
        print(key, text, file=file)


@taskguard.endpoint
def analyze(job):
    text = job.input.get("text")
    if not isinstance(text, str):
        raise taskguard.Failed("no_text", "the input has no text", permanent=True)

    total = job.resume
    if total is None:
        job.report(0.1, "counts the words")
        total = len(text.split())
        job.checkpoint(total)

    with job.once("mail") as mail:
        send_mail(job.input["outbox"], f"{total} words", mail.key)
    return {"words": total}


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    port = int(sys.argv[1]) if sys.argv[1:] else 8600
    with make_server("localhost", port, analyze.wsgi, server_class=Server) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
