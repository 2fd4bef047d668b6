"""An analyzer that its provider may slow down: ANALYZER="exec:python3 ratelimit.py"

Its input is {"url": "https://…"}."""
import json, os, sys, urllib.error, urllib.request

job = json.load(sys.stdin)
try:
    with urllib.request.urlopen(job["input"]["url"]) as response:
        result = {"bytes": len(response.read())}
except urllib.error.HTTPError as e:
    if e.code != 429:
        raise
    with open(int(os.environ["REPORT_FD"]), "w") as reports:
        print(json.dumps({"retry_after": float(e.headers.get("Retry-After", 60))}), file=reports)
    sys.exit("the provider limits the rate")
print(json.dumps(result))
