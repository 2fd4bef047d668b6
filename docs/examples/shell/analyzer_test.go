//go:build linux || darwin

package shell

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

func TestAnalyzer(t *testing.T) {
	examplestest.Continues(t, "exec:/bin/sh analyzer.sh")
}

// A pipe has all replies before the script asks.
func TestCharge(t *testing.T) {
	const charged = `{"charged":4200}` + "\n"
	const begins = `{"effect":"charge","ack":1}` + "\n"
	for name, tc := range map[string]struct{ replies, ledger, reports, output string }{
		"not begun": {
			replies: `{"ack":1,"effect":{"state":"go","key":"k"}}` + "\n" + `{"ack":2}`,
			reports: begins + `{"effect":"charge","done":{"charged":4200},"ack":2}` + "\n",
			ledger:  "k 4200\n", output: charged,
		},
		"done":          {`{"ack":1,"effect":{"state":"done","result":{}}}`, "", begins, charged},
		"uncertain":     {`{"ack":1,"effect":{"state":"uncertain","key":"k"}}`, "", begins, ""},
		"not committed": {`{"ack":1,"error":"the lock is lost"}`, "", begins, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := func(name, text string) (path string) {
				path = filepath.Join(t.TempDir(), name)
				must.OK(t, os.WriteFile(path, []byte(text), 0o600))
				return path
			}
			ledger, reports := file("ledger", ""), file("reports", "")
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c",
				fmt.Sprintf(`exec sh charge.sh 3>%s 4<%s`, reports, file("replies", tc.replies+"\n")))
			cmd.Env = append(os.Environ(), "REPORT_FD=3", "REPLY_FD=4")
			cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"input":{"cents":4200,"ledger":%q}}`, ledger))
			output, err := cmd.Output()

			got, _ := os.ReadFile(ledger)
			sent, _ := os.ReadFile(reports)
			if string(output) != tc.output || (err == nil) != (tc.output != "") {
				t.Errorf("%q, %v, want %q", output, err, tc.output)
			}
			if string(got) != tc.ledger || string(sent) != tc.reports {
				t.Errorf("the ledger is %q after %q, want %q after %q", got, sent, tc.ledger, tc.reports)
			}
		})
	}
}
