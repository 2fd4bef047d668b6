package main

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
)

// build says which one this is; empty where the go command did not say.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Changed bool   `json:"changed,omitempty"` // since that commit
	Go      string `json:"go"`
}

func showVersion(_ context.Context, c *call) error {
	c.takesJSON("print the build as one JSON document")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program was built without module support")
	}
	b := build{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Changed = s.Value == "true"
		}
	}
	if c.json {
		return json.NewEncoder(c.out).Encode(b)
	}
	printTo(c.out, "taskguard %s, %s\n", b.Version, b.Go)
	return nil
}
