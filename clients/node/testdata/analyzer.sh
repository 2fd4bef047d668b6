#!/bin/sh
# The analyzer of the workers in Go: it writes the lines that worker.mjs writes. $1 is the journal.
cat >/dev/null
line() { echo "$1 $ANALYSIS_ID $LOCK_TOKEN $PPID" >>"$journal"; }
journal=$1
line begin
case "$ANALYSIS_ID/$ATTEMPT" in
killed-*/1) exec sleep 60 ;;
long-*) sleep 8 ;;
*) sleep 0.2 ;;
esac
line end
echo "{\"token\": $LOCK_TOKEN}"
