#!/bin/sh
# An analyzer with which to practise: it charges, needs a service that is down, or takes ten minutes.
# docs/fix-an-analysis.md describes it.
job=$(cat)
case $job in
*'"charge"'*)
	echo '{"effect":"charge","ack":1}' >&"$REPORT_FD"
	read -r reply <&"$REPLY_FD"
	case $reply in *'"done"'*) echo '{"charged":4200}' && exit ;; esac
	echo "the provider did not answer" >&2
	exit 1
	;;
*'"ocr"'*)
	echo '{"error":{"code":"ocr_down","message":"the OCR service is down"}}' >&"$REPORT_FD"
	exit 1
	;;
esac
exec sleep 600
