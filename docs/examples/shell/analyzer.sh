#!/bin/sh
# An analyzer that continues where an earlier attempt was interrupted:
#
#   ANALYZER="exec:/bin/sh analyzer.sh"
#
# Its input is {"pages": 40}; with "seconds": 0.5 in it, each page takes so long. The worker
# sends the job as one line of compact JSON. number finds a field by its name wherever it is
# in the job, so the input must not have the names of the checkpoint: done and sum.
set -e

analyze() { # the expensive work on one page
	sleep "${seconds:-0}"
	echo "$1"
}

job=$(cat)
number() { printf '%s\n' "$job" | sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }
pages=$(number pages) seconds=$(number seconds) done=$(number done) sum=$(number sum)
: "${done:=0}" "${sum:=0}"
while [ "$done" -lt "$pages" ]; do
	sum=$((sum + $(analyze $((done + 1)))))
	done=$((done + 1))
	echo "{\"message\":\"page $done of $pages\",\"checkpoint\":{\"done\":$done,\"sum\":$sum}}" >&"$REPORT_FD"
done
echo "{\"sum\":$sum}"
