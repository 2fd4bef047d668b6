package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"taskguard/cmd/taskguard/fleet"
)

// variable is one of the environment.
type variable struct{ name, value string }

// variables are what makes another taskguard work here. cmd/worker takes them
// too, with TASK_AUTH=none.
func (l *locality) variables() []variable {
	all := []variable{
		{"GOOGLE_CLOUD_PROJECT", l.place.project},
		{firestoreEmulator, l.place.emulator},
		{"TASK_QUEUE", demoQueue},
		{"TASK_TARGET_URL", l.route.target},
		{"TASK_CALLER", demoCaller},
		{tasksEmulator, l.route.tasks},
	}
	for _, name := range []string{"ANALYSES_COLLECTION", "LOCK_TTL", "RUN_TIMEOUT", "DOCUMENT_LOCKS_COLLECTION"} {
		if value := l.c.value(name); value != "" {
			all = append(all, variable{name, value})
		}
	}
	return all
}

// tell prints what another terminal needs.
func (l *locality) tell(workers []*fleet.Worker, all []variable) error {
	if !l.c.json {
		_, err := io.WriteString(l.c.out, exports(all, invocation(os.Args[0])))
		return err
	}
	environment := map[string]string{}
	for _, v := range all {
		environment[v.name] = v.value
	}
	type process struct {
		Worker  int    `json:"worker"`
		PID     int    `json:"pid"`
		Address string `json:"address"`
	}
	var processes []process
	for _, w := range workers {
		processes = append(processes, process{w.Number, w.PID, w.Address})
	}
	return json.NewEncoder(l.c.out).Encode(map[string]any{"environment": environment, "workers": processes, "doclock": l.page, "console": l.console})
}

// exports is for a shell in another terminal, and for who sits there. self is
// how this program is started.
func exports(all []variable, self string) string {
	text := "In another terminal:\n\n"
	for _, v := range all {
		text += "  export " + v.name + "=" + quoted(v.value) + "\n"
	}
	return text + "\nand then:\n\n  " + self + " submit FILE… --wait\n\nor status, unlock ID, unlock --room ROOM, requeue ID, recover in the place of submit. " +
		"Ctrl-C ends it; the data are in memory. Unset the variables after that.\n\n"
}

// cached is where the go command keeps what `go run` has built, whatever its cache
// is called.
var cached = regexp.MustCompile(`^[0-9a-f]{64}-d$`)

// invocation is how to start this program again: as it was started, but for
// what `go run` has built and will delete.
func invocation(arg0 string) string {
	for dir := filepath.Dir(arg0); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if base := filepath.Base(dir); strings.HasPrefix(base, "go-build") || cached.MatchString(base) {
			return "go run ./cmd/taskguard"
		}
	}
	return quoted(arg0)
}

// quoted is text as one word of a POSIX shell.
func quoted(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
