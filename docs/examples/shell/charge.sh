#!/bin/sh
# An analyzer with an act that is not repeated: ANALYZER="exec:/bin/sh charge.sh"
#
# Its input is {"cents": 4200, "ledger": FILE}; a line in that file is a charge.
set -e
job=$(cat)
field() { printf '%s\n' "$2" | sed -n "s/.*\"$1\":\"*\([^\",}]*\).*/\1/p"; }

echo '{"effect":"charge","ack":1}' >&"$REPORT_FD"
read -r reply <&"$REPLY_FD" # when the marker is committed
case $(field state "$reply") in
go)
	echo "$(field key "$reply") $(field cents "$job")" >>"$(field ledger "$job")" # the provider, which gets the key
	echo "{\"effect\":\"charge\",\"done\":{\"charged\":$(field cents "$job")},\"ack\":2}" >&"$REPORT_FD"
	read -r reply <&"$REPLY_FD"
	case $reply in *'"error"'*) exit 1 ;; esac ;;
done) ;;
*) echo "an earlier attempt may have charged" >&2; exit 1 ;; # FAILED, until an operator answers
esac
echo "{\"charged\":$(field cents "$job")}"
