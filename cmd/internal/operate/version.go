package operate

import (
	"context"
	"errors"
	"runtime/debug"

	"taskguard/cmd/internal/cli"
)

// release is the version that CHANGELOG.md describes first.
const release = "0.1.0"

// Version prints which build of taskguard this is. The go command puts the commit into
// the module's version.
func Version(_ context.Context, c *cli.Call) error {
	c.TakesJSON("print the build as one JSON document")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program was built without module support")
	}
	if c.JSON {
		return c.PrintJSON(map[string]string{"release": release, "version": info.Main.Version, "go": info.GoVersion})
	}
	cli.Print(c.Out, "taskguard %s, commit %s, %s\n", release, info.Main.Version, info.GoVersion)
	return nil
}
