//go:build linux || darwin

package orchestrator_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/orchestrator"
)

// A child reports. The last line has no end.
func TestProgram_Reports(t *testing.T) {
	longest := `{"progress":0.7}` + strings.Repeat(" ", 1<<20-16)
	file := newFile(t, `{"progress":0.5}`+"\n"+longest+" \n"+longest)
	var got recorder
	if _, err := script(t.Context(), t, &got, "sh -c 'cat "+file+` >&"$REPORT_FD"'`); err != nil {
		t.Fatal(err)
	}
	equal(t, got.reports, []string{"0.5", "0.7"})
	equal(t, got.invalid, []string{"a report is too long"})
}

func TestProgram_Error(t *testing.T) {
	const unexplained = `{"code":"","message":"stderr"}`
	const notAnError = "an error is not an object with code, message and permanent"
	for name, c := range map[string]struct {
		reports, end string
		want         string // the error; empty: the result
		complaint    string // about the reports
	}{
		"with exit 65": {
			reports: `{"error":{"code":"no_page","message":"m"}}`, end: "exit 65",
			want: `{"code":"no_page","message":"m","permanent":true}`,
		},
		"with a signal": {
			reports: `{"error":{"code":"no_page"}}`, end: "kill -9 $$", want: `{"code":"no_page","message":"stderr"}`,
		},
		"permanent, with a signal": {
			reports: `{"error":{"permanent":true}}`, end: "kill -9 $$",
			want: `{"code":"analyzer_rejected","message":"stderr","permanent":true}`,
		},
		"the newest, beside a report": {
			reports: `{"error":{"code":"old"}}` + "\n" + `{"progress":1,"error":{"code":"new","message":null}}` + "\n" + `{"progress":1,"error":null}`,
			end:     "exit 2", want: `{"code":"new","message":"stderr"}`,
		},
		"a wait, the newest": {
			reports: `{"retry_after":90}` + "\n" + `{"progress":1,"retry_after":0.25}`, end: "exit 1",
			want: `{"code":"","message":"stderr","retry_after":1}`,
		},
		"a wait with a permanent error": {
			reports: `{"retry_after":90,"error":{"permanent":true}}`, end: "exit 1",
			want: `{"code":"analyzer_rejected","message":"stderr","permanent":true}`,
		},
		"a wait, taken back": {reports: `{"retry_after":90}` + "\n" + `{"retry_after":0}`, end: "exit 1", want: unexplained},
		"no number": {
			reports: `{"retry_after":"s3cret"}`, end: "exit 1", want: unexplained,
			complaint: "the retry_after of a report has a wrong type",
		},
		"null":                 {reports: `{"progress":1,"retry_after":null}`, end: "exit 1", want: unexplained},
		"a wait, and succeeds": {reports: `{"retry_after":90}`, end: "exit 0"},
		"no object":            {reports: `{"error":"s3cret"}`, end: "exit 1", want: unexplained, complaint: notAnError},
		"no boolean":           {reports: `{"error":{"permanent":"yes"}}`, end: "exit 1", want: unexplained, complaint: notAnError},
		"an error, and succeeds": { // one warning for two
			reports: `{"error":{"code":"c"}}` + "\n" + `{"error":{"code":"c"}}`, end: "exit 0",
			complaint: "the program reported an error and ended with exit status 0: its output is the result",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got recorder
			text := "cat " + newFile(t, c.reports) + ` >&"$REPORT_FD"; echo stderr >&2; echo 7; ` + c.end
			result, err := script(t.Context(), t, &got, text)
			want := `{"result":7}`
			if c.want != "" {
				want = `{"error":` + c.want + `}`
			}
			equal(t, plain(t, outcome(result, err)), plain(t, json.RawMessage(want)))
			equal(t, strings.Join(append(got.invalid, got.warned...), ";"), c.complaint)
		})
	}
}

func TestRetryAfterError(t *testing.T) {
	err := orchestrator.RetryAfterError{Wait: time.Minute}
	if !strings.Contains(err.Error(), "1m0s") {
		t.Error(err.Error())
	}
	err.Err = errors.New("busy")
	equal(t, err.Error(), "busy")
}

func TestProgram_ReportFile(t *testing.T) {
	for name, text := range map[string]string{
		"closed":               `exec 3>&-; echo 7`,
		"held by a child":      `sleep 3600 & echo 7`,
		"a program without it": `eval "exec 3</dev/null"; echo 7`,
	} {
		var got recorder
		result, err := script(t.Context(), t, &got, text)
		if err != nil || result != int64(7) {
			t.Errorf("%s: %v, %v", name, result, err)
		}
		equal(t, len(got.reports)+len(got.invalid), 0)
	}
}

func TestProgram_LongReport(t *testing.T) {
	grown := allocated(func() {
		var got recorder
		result, err := script(t.Context(), t, &got, `yes | tr -d '\n' | head -c 64000000 >&3; echo >&3; echo 7`)
		if err != nil || result != int64(7) {
			t.Errorf("%v, %v", result, err)
		}
		equal(t, got.invalid, []string{"a report is too long"})
	})
	if grown > 32<<20 {
		t.Errorf("a line of 64 MB took %d bytes of memory", grown)
	}
}
