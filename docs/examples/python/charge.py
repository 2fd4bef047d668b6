"""An analyzer with an act that is not repeated: ANALYZER="exec:python3 charge.py"

Its input is {"cents": 4200, "ledger": FILE}; a line in that file is a charge."""
import json, os, sys

job = json.load(sys.stdin)
reports = open(int(os.environ["REPORT_FD"]), "w", buffering=1)  # sends each line at once
replies = open(int(os.environ["REPLY_FD"]))

def ask(line):  # returns the reply, which comes when the line is committed
    print(json.dumps(line | {"ack": 1}), file=reports)
    reply = json.loads(replies.readline())
    return reply if "error" not in reply else sys.exit(reply["error"])

cents, path = job["input"]["cents"], job["input"]["ledger"]  # a wrong input ends here, before the act
act = ask({"effect": "charge"})["effect"]
if act["state"] == "uncertain":
    sys.exit("an earlier attempt may have charged")  # FAILED, until an operator answers
if act["state"] == "go":
    with open(path, "a") as ledger:  # the provider, which gets act["key"]
        print(act["key"], cents, file=ledger)
    act["result"] = {"charged": cents}
    ask({"effect": "charge", "done": act["result"]})
print(json.dumps(act["result"]))
