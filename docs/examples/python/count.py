import json, sys

job = json.load(sys.stdin)
if "text" not in job["input"]:
    print("the input has no text", file=sys.stderr)
    sys.exit(65)  # permanent: another attempt would not help
print(json.dumps({"words": len(job["input"]["text"].split())}))
