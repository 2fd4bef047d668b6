"""An analyzer that continues where an earlier attempt was interrupted:

    ANALYZER="exec:python3 analyzer.py"

Its input is {"pages": 40}; with "seconds": 0.5 in it, each page takes so long."""
import json, os, sys, time

def analyze(page):  # the expensive work on one page
    time.sleep(job["input"].get("seconds", 0))
    return page

job = json.load(sys.stdin)
state = job.get("checkpoint") or {"done": 0, "sum": 0}
pages = job["input"]["pages"]
with open(int(os.environ["REPORT_FD"]), "w", buffering=1) as reports:  # sends each line at once
    while state["done"] < pages:
        state["sum"] += analyze(state["done"] + 1)
        state["done"] += 1
        message = f"page {state['done']} of {pages}"
        print(json.dumps({"progress": state["done"] / pages, "message": message, "checkpoint": state}), file=reports)
print(json.dumps({"sum": state["sum"]}))
