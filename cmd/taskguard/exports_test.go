package main

import (
	"strings"
	"testing"
	"time"

	"taskguard/cmd/worker/service"
)

func TestLocalSaysHowToStartThisProgramAgain(t *testing.T) {
	for arg0, want := range map[string]string{
		"taskguard": "taskguard", "./bin/taskguard": "./bin/taskguard", "/opt/a b/taskguard": "'/opt/a b/taskguard'",
		"/tmp/go-build123/b001/exe/taskguard":                        "go run ./cmd/taskguard",
		"/var/cache/ff/" + strings.Repeat("f0", 32) + "-d/taskguard": "go run ./cmd/taskguard", // GOCACHE=/var/cache
	} {
		if got := invocation(arg0); got != want {
			t.Errorf("%s: %s, want %s", arg0, got, want)
		}
	}
}

func TestExportsAreForAShell(t *testing.T) {
	text := exports([]variable{{"A", "projects/p/q:1"}, {"B", "it's $x"}}, "./tg")
	for _, want := range []string{"export A=projects/p/q:1\n", `export B='it'\''s $x'` + "\n", "  ./tg submit FILE… --wait\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	if strings.Contains(text, "#") {
		t.Errorf("%s warns of nothing", text)
	}
}

func TestAWorkerTakesWhatLocalExports(t *testing.T) {
	c := newCall(command{}, nil, streams{}, vars{"ANALYSES_COLLECTION": "c", "RUN_TIMEOUT": "40s", "LOCK_TTL": "30s", "LOG_LEVEL": "debug"}.lookup)
	l := &locality{c: c, place: place{project: "p", emulator: "127.0.0.1:1"}, route: route{target: "http://127.0.0.1:3", tasks: "127.0.0.1:2"}}
	env := vars{"TASK_AUTH": "none"}
	for _, v := range l.variables() {
		env[v.name] = v.value
	}
	cfg, err := service.ParseConfig(env.lookup)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Queue == nil || cfg.Queue.Caller != demoCaller || cfg.RunTimeout != 40*time.Second || cfg.Policy.TTL != 30*time.Second || cfg.Collection != "c" {
		t.Errorf("%+v of %v", cfg, env)
	}
	if env["LOG_LEVEL"] != "" {
		t.Errorf("%v, want nothing that another terminal does not need", env)
	}
}
