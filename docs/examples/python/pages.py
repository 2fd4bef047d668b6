import json, os, sys, time

job = json.load(sys.stdin)
pages = job["input"]["pages"]
state = job.get("checkpoint") or {"done": 0, "read_by": ""}

with open(int(os.environ["REPORT_FD"]), "w", buffering=1) as reports:
    while state["done"] < pages:
        time.sleep(1)  # the expensive work on one page
        state["done"] += 1
        state["read_by"] += str(job["attempt"])
        report = {"progress": state["done"] / pages, "message": f"page {state['done']} of {pages}", "checkpoint": state}
        print(json.dumps(report), file=reports)

print(json.dumps(state))
