#!/bin/sh
# An analyzer that continues where an earlier attempt was interrupted:
#
#   ANALYZER="exec:/bin/sh analyzer.sh"
#
# Its input is {"pages": 40}. The job is one line, and its checkpoint is at the end.
set -e

analyze() { # the expensive work on one page
	echo "$1"
}

job=$(cat)
number() { printf '%s\n' "$job" | sed -n "s/.*$1.*/\1/p"; }
pages=$(number '"input":{"pages":\([0-9]*\)}')
done=$(number '"checkpoint":{"done":\([0-9]*\),')
sum=$(number '"checkpoint":{"done":[0-9]*,"sum":\([0-9]*\)}')
: "${done:=0}" "${sum:=0}"
while [ "$done" -lt "$pages" ]; do
	sum=$((sum + $(analyze $((done + 1)))))
	done=$((done + 1))
	echo "{\"message\":\"page $done of $pages\",\"checkpoint\":{\"done\":$done,\"sum\":$sum}}" >&"$REPORT_FD"
done
echo "{\"sum\":$sum}"
