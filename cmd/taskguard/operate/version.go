package operate

import (
	"context"
	"errors"
	"runtime/debug"

	"taskguard/cmd/taskguard/cli"
)

// build describes this program; a field is empty where the go command left it out.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Changed bool   `json:"changed,omitempty"` // since that commit
	Go      string `json:"go"`
}

// Version prints which build of taskguard this is.
func Version(_ context.Context, c *cli.Call) error {
	c.TakesJSON("print the build as one JSON document")
	if _, err := c.Parse(0, 0); err != nil {
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
	if c.JSON {
		return c.PrintJSON(b)
	}
	cli.Print(c.Out, "taskguard %s, %s\n", b.Version, b.Go)
	return nil
}
