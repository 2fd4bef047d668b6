"""Counts the words of a document page by page, and charges for it once.

    ANALYZER="exec:python3 analyzer.py"

Its input is {"pages": ["…", "…"], "ledger": FILE}; a line in that file is a charge."""

import pathlib
import time

import taskguard


def count_words(page):  # the expensive work on one page
    time.sleep(0.01)
    return len(page.split())


def charge(ledger, cents, key):  # the provider, which does one charge for one key
    with open(ledger, "a") as file:
        print(key, cents, file=file)
    return {"charged": cents}


def find_charge(ledger, key):
    for line in pathlib.Path(ledger).read_text().splitlines():
        if line.startswith(key):
            return {"charged": int(line.split()[1])}
    raise taskguard.NotDone


def analyze(job):
    pages, ledger = job.input["pages"], job.input["ledger"]
    if not pages:
        raise taskguard.Failed("no_pages", "the document has no pages", permanent=True)

    state = job.resume or {"done": 0, "words": 0}
    while state["done"] < len(pages):
        state["words"] += count_words(pages[state["done"]])
        state["done"] += 1
        job.report(state["done"] / len(pages), f"page {state['done']} of {len(pages)}")
        job.checkpoint(state)

    with job.once("charge", find=lambda key: find_charge(ledger, key)) as bill:
        bill.result = charge(ledger, state["words"], bill.key)
    return {"words": state["words"], "bill": bill.result}


if __name__ == "__main__":
    taskguard.run(analyze)
