package web_test

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"taskguard/worker/doclock/web"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := fs.ReadFile(web.Files(), name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var (
	reference = regexp.MustCompile(`(?:src|href)="([^"]*)"|from '\.(/[^']*)'`)
	inline    = regexp.MustCompile(`(?i)<style|\sstyle=|\son\w+=|<script(?:\s+type="\w+")?>`)
)

func TestThePageNamesOnlyFilesThatAreThereAndHasNothingInline(t *testing.T) {
	page := read(t, "index.html")
	if found := inline.FindString(page); found != "" {
		t.Errorf("the page has %q, which its Content-Security-Policy forbids", found)
	}
	references := reference.FindAllStringSubmatch(page+read(t, "page.js"), -1)
	if got, want := len(references), 3; got != want {
		t.Errorf("%d references, want %d: %q", got, want, references)
	}
	for _, r := range references {
		name, local := strings.CutPrefix(r[1]+r[2], "/")
		if !local {
			t.Errorf("%q is not a path of this server", r[0])
		}
		read(t, name)
	}
}

func TestTheModuleExportsTheSeedsFunctionsAndDependsOnNothing(t *testing.T) {
	module := read(t, "locks.js")
	for _, name := range []string{
		"acquireProjectLock", "renewProjectLock", "releaseProjectLock", "withProjectLock", "subscribeLockEvents",
	} {
		if !regexp.MustCompile(`(?m)^export (async )?function ` + name + `\(`).MatchString(module) {
			t.Errorf("%s is not exported", name)
		}
	}
	if found := regexp.MustCompile(`(?m)^import\b.*`).FindString(module); found != "" {
		t.Errorf("the module has %q, want no imports", found)
	}
}
