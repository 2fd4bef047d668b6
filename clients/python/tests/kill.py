"""The example whose first attempt kills its worker: at a page named kill, or after the charge."""

import os
import signal
import sys
import time

sys.path.insert(0, "examples")
import analyzer
import taskguard


def kill():
    if os.environ["ATTEMPT"] == "1":
        time.sleep(2.5)  # the worker commits the newest checkpoint
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


def count_words(page):
    if page == "kill":
        kill()
    print("page", page)  # goes to standard error: the output is the result
    return len(page.split())


def charge(ledger, cents, key, act=analyzer.charge):
    result = act(ledger, cents, key)
    kill()
    return result


analyzer.count_words, analyzer.charge = count_words, charge
taskguard.run(analyzer.analyze)
