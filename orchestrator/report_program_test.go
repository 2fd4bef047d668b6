//go:build linux || darwin

package orchestrator_test

import (
	"cmp"
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
	const rejected = `{"code":"analyzer_rejected","message":"stderr","permanent":true}`
	const notAnError = "an error is not an object with code, message and permanent"
	for name, c := range map[string]struct {
		lines     string
		end       string // empty: exit 1
		want      string // the error; empty: the result
		complaint string // about the lines
	}{
		"with exit 65":  {lines: `{"error":{"permanent":false}}`, end: "exit 65", want: rejected},
		"with a signal": {lines: `{"error":{"code":"c"}}`, end: "kill -9 $$", want: `{"code":"c","message":"stderr"}`},
		"permanent":     {lines: `{"error":{"permanent":true}}`, end: "kill -9 $$", want: rejected},
		"no object":     {lines: `{"error":"s3cret"}`, want: unexplained, complaint: notAnError},
		"no boolean":    {lines: `{"error":{"permanent":"yes"}}`, want: unexplained, complaint: notAnError},
		"the newest one": {
			lines: `{"error":{"code":"old"}}
{"progress":1,"error":{"code":"new","message":null}}
{"progress":1,"error":null}`,
			want: `{"code":"new","message":"stderr"}`,
		},
		"and success": { // one warning for two
			lines: `{"error":{"code":"c"}}` + "\n" + `{"error":{"code":"c"}}`, end: "exit 0",
			complaint: "the program reported an error and ended with exit status 0: its output is the result",
		},

		"the newest wait": {
			lines: `{"retry_after":90}` + "\n" + `{"progress":1,"retry_after":0.25}`,
			want:  `{"code":"","message":"stderr","retry_after":1}`,
		},
		"a wait, and permanent": {lines: `{"retry_after":90,"error":{"permanent":true}}`, want: rejected},
		"a wait, taken back":    {lines: `{"retry_after":90}` + "\n" + `{"retry_after":0}`, want: unexplained},
		"a wait, and success":   {lines: `{"retry_after":90}`, end: "exit 0"},
		"a wait of null":        {lines: `{"progress":1,"retry_after":null}`, want: unexplained},
		"a wait, no number": {
			lines: `{"retry_after":"s3cret"}`, want: unexplained,
			complaint: "the retry_after of a report has a wrong type",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got recorder
			text := "cat " + newFile(t, c.lines) + ` >&3; echo stderr >&2; echo 7; ` + cmp.Or(c.end, "exit 1")
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
	for _, text := range []string{
		`exec 3>&-; echo 7`,
		`sleep 3600 & echo 7`, // a child holds it
		`eval "exec 3</dev/null"; echo 7`,
	} {
		var got recorder
		result, err := script(t.Context(), t, &got, text)
		want7(t, result, err)
		equal(t, len(got.reports)+len(got.invalid), 0)
	}
}

func TestProgram_LongReport(t *testing.T) {
	grown := allocated(func() {
		var got recorder
		result, err := script(t.Context(), t, &got, `yes | tr -d '\n' | head -c 64000000 >&3; echo >&3; echo 7`)
		want7(t, result, err)
		equal(t, got.invalid, []string{"a report is too long"})
	})
	if grown > 32<<20 {
		t.Errorf("a line of 64 MB took %d bytes of memory", grown)
	}
}
