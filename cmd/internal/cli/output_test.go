package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestParseTime(t *testing.T) {
	const refused = -1
	for text, want := range map[string]time.Duration{
		"1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0d": 0, "d": refused, "-1d": refused,
		"1.5d": refused, "1d2d": refused, "99999d": refused, "65535d2562047h": refused, "-1h": refused, "1": refused,
	} {
		got, base := time.Duration(refused), time.Unix(1e9, 0)
		at, err := ParseTime(text)
		if err == nil {
			got = base.Sub(at(base))
		}
		if got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Hour + 1: "", time.Hour: "1h0m0s", time.Minute: "1m0s", 1500 * time.Millisecond: "1.5 s",
	} {
		if got := Duration(d, "%s"); got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
	}
}

// The null device is a character device, as a terminal is.
func TestCall_Fit(t *testing.T) {
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	file, fileErr := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil || fileErr != nil {
		t.Fatal(err, fileErr)
	}
	defer func() { _, _ = device.Close(), file.Close() }()
	for out, want := range map[io.Writer]string{device: "ab…hij", file: "abcdefghij", io.Discard: "abcdefghij"} {
		var got string
		command := func(Lookup) *cobra.Command {
			return &cobra.Command{Use: "fit", Run: func(cmd *cobra.Command, _ []string) {
				got = NewCall(cmd, nil).Fit("abcdefghij", 6)
			}}
		}
		Run(t.Context(), []Command{command}, []string{"fit"}, Streams{Out: out, Err: io.Discard}, nil)
		if got != want {
			t.Errorf("%T: %q, want %q", out, got, want)
		}
	}
}

func TestExports(t *testing.T) {
	got := Exports(map[string]string{"A": "projects/p/q:1", "B": "it's $x"})
	if want := "export A=projects/p/q:1\n" + `export B='it'\''s $x'` + "\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// startedAs makes name the one by which this program was started.
func startedAs(t *testing.T, name string) {
	before := os.Args[0]
	t.Cleanup(func() { os.Args[0] = before })
	os.Args[0] = name
}

func TestProgram(t *testing.T) {
	for typed, want := range map[string]string{
		"taskguard": "taskguard", "bin/taskguard": "bin/taskguard", "/my tools/taskguard": "'/my tools/taskguard'",
		"/tmp/go-build1/b001/exe/taskguard": "go run ./cmd/taskguard", "tg": "tg",
		"/go-builder/taskguard": "/go-builder/taskguard",
	} {
		startedAs(t, typed)
		if got := Program(); got != want {
			t.Errorf("started as %s: %s, want %s", typed, got, want)
		}
	}
}

// In the wrapped messages | is the end of a line. No command is broken.
func TestFold(t *testing.T) {
	startedAs(t, "bin/taskguard")
	for _, want := range []string{
		"taskguard status: short",
		"taskguard status: reading|  demo-taskguard / (default) /|  x",
		"taskguard status: unknown|  flag --x|  (see: bin/taskguard help status)",
		"taskguard requeue:|  bin/taskguard requeue --status QUEUED --since 1h enqueues them",
		"taskguard run: it failed\n  File \"a.py\", line 1234567, in f\nKeyError",
	} {
		message := strings.ReplaceAll(want, "|  ", " ")
		if got, want := fold(message, 30), strings.ReplaceAll(want, "|", "\n"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := fold(message, 0); got != message {
			t.Errorf("without a terminal: %q", got)
		}
	}
}
