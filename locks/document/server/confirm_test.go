package server_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
)

func TestAnApplicationConfirmsALockBeforeItSaves(t *testing.T) {
	locks := must(document.New(&lease.Memory[document.Lock]{}, 0))(t)
	server := httptest.NewServer(server.NewServer(t.Context(), locks, nil, cookies(t), server.Options{}))
	t.Cleanup(server.Close)
	lock, err := locks.Acquire(t.Context(), "文書 1", "session/a@x.test/tab")
	if err != nil {
		t.Fatal(err)
	}
	cookie := "other=1; " + signed(fmt.Sprintf("v1.a%%40x%%2Etest.%d", time.Now().Unix())) + "; more=2"
	for tool, program := range map[string][]string{"PHP": {"php", "confirm.php"}, "NODE": {"node", "confirm.js"}} {
		t.Run(program[0], func(t *testing.T) {
			ask := func(url, token, client string) (valid int, err error) {
				cmd := exec.CommandContext(t.Context(), examplestest.Find(t, tool, program[0])[0], program[1], url, "文書 1", token, client) //nolint:gosec // the test's own
				cmd.Dir, cmd.Env = "../../../docs/examples/"+program[0], append(os.Environ(), "COOKIE="+cookie)
				out, err := cmd.Output()
				if err == nil {
					valid, err = strconv.Atoi(strings.TrimSpace(string(out)))
				}
				return valid, err
			}
			token := fmt.Sprint(lock.Lock.Token)
			if valid, err := ask(server.URL, token, "tab"); err != nil || valid < 1 || valid > 27_000 {
				t.Errorf("the holder: %d ms, %v", valid, err)
			}
			for _, c := range [][2]string{{token, "other"}, {token, ""}, {"1", "tab"}} {
				if valid, err := ask(server.URL, c[0], c[1]); err != nil || valid != 0 {
					t.Errorf("%v: %d ms, %v, want 0", c, valid, err)
				}
			}
			if valid, err := ask("http://127.0.0.1:1", token, "tab"); err == nil {
				t.Errorf("without a server: %d ms", valid)
			}
		})
	}
}
