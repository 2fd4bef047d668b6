package main

import (
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
)

func TestReadOperators(t *testing.T) {
	t.Run("an invalid file is named, with an example", func(t *testing.T) {
		for _, content := range []string{
			"kana", "", `{"operators":[]}`, `{"operators":["kana"]}`, `{"operators":[{"id":"kana"},{"id":"kana"}]}`,
			`{"operators":[{"name":"kana"}]}`, `{"operators":[{"id":"kana"}],"operatorTimeout":1.5}`,
		} {
			x := open(t, newState(t), "1")
			x.flags[1] = written(t, content)
			got := x.run("available")
			if got.code != exitUsage || got.out != "" {
				t.Errorf("%s: %+v", content, got)
			}
			if !strings.Contains(got.err, x.flags[1]) || !strings.Contains(got.err, operatorsExample) {
				t.Errorf("%s: %+v; want the file and an example", content, got)
			}
		}
	})

	t.Run("flag, then environment, then folder", func(t *testing.T) {
		x := open(t, newState(t), "1")
		x.flags = x.flags[2:]
		x.done("かな", "assign", "kana") // operators.json is in this folder
		x.env["OPERATORS_FILE"] = written(t, operatorsExample)
		x.done(": tsukuyomi\n", "available")
		x.done(", kana\n", "available", "--operators", "operators.json")
	})

	t.Run("without a list the seed's are built in", func(t *testing.T) { // O10: as the seed types it
		x := terminal{t, map[string]string{"ITERM_SESSION_ID": "s1"}, []string{"--state", newState(t)}}
		cmd := x.program("assign", "tsukuyomi")
		cmd.Dir, cmd.Env = t.TempDir(), append(cmd.Env, "OPERATORS_FILE=")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "つくよみちゃん") {
			t.Errorf("%v: %s", err, out)
		}
		o, timeout, err := readOperators(written(t, `{"operatorTimeout": 3600000}`))
		if must.OK(t, err); len(o) != 6 || timeout != time.Hour {
			t.Errorf("%v, %v", o, timeout)
		}
	})

	t.Run("the file's timeout counts", func(t *testing.T) { // O6
		o, timeout, err := readOperators("operators.json")
		if must.OK(t, err); len(o) != 6 || timeout != 4*time.Hour {
			t.Errorf("the sample: %v, %v", o, timeout)
		}
		state, path := newState(t), written(t, `{"operators":[{"id":"kana"}],"operatorTimeout":1}`)
		one, two := open(t, state, "1st"), open(t, state, "2nd")
		one.flags[1], two.flags[1] = path, path
		one.done("kana", "assign")
		must.OK(t, two.program("assign").Run()) // to start it takes a millisecond
	})
}
