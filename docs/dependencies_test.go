package docs

import (
	"regexp"
	"strings"
	"testing"
)

var direct = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`) // and not "// indirect"

func TestEveryDependencyIsInTheREADME(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../README.md"), "## Dependencies")
	modules := direct.FindAllStringSubmatch(read(t, "../go.mod"), -1)
	for _, m := range modules {
		if !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("README.md gives no reason for %s", m[1])
		}
	}
	if len(modules) < 10 {
		t.Errorf("%d modules", len(modules))
	}
	for _, named := range regexp.MustCompile("`([a-z.]+/[^`]+)`").FindAllStringSubmatch(table, -1) {
		if !strings.Contains(read(t, "../go.mod"), named[1]+" ") {
			t.Errorf("README.md lists %s, which is not in go.mod", named[1])
		}
	}
}
