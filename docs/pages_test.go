package docs

import (
	"encoding/xml"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headline = regexp.MustCompile(`(?m)^#+ (.+)$`)
	command  = regexp.MustCompile("go (test|run|build|install)[^`|\n]* \\./([a-z/-]+)")
	unslug   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

var foreign = map[string]bool{".git": true, "node_modules": true, "vendor": true}

// source matches a file or folder of ours.
var source = regexp.MustCompile("`((?:cmd|deploy|docs|emulator|internal|lease|locks|orchestrator|repo|worker)/[\\w./-]+)`")

// A link inside the repository leads to a file, and to a heading in it. A command names a
// package that has such files.
func TestPages_Links(t *testing.T) {
	links, commands := 0, 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && foreign[d.Name()] { // in a worktree .git is a file
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		for _, l := range link.FindAllStringSubmatch(read(t, path), -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			links++
			file, anchor, anchored := strings.Cut(l[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, l[1], err)
				continue
			}
			if anchored && !anchors(read(t, target))[anchor] {
				t.Errorf("%s links to %s, and there is no such heading", path, l[1])
			}
		}
		if strings.HasSuffix(path, "ARCHITECTURE.md") { // its tables of rooms and files
			for _, file := range source.FindAllStringSubmatch(read(t, path), -1) {
				if _, err := os.Stat("../" + file[1]); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
		for _, c := range command.FindAllStringSubmatch(read(t, path), -1) {
			commands++
			pattern := map[bool]string{true: "*_test.go", false: "*.go"}[c[1] == "test"]
			files := filepath.Join("..", c[2], pattern)
			if found, err := filepath.Glob(files); len(found) == 0 && !strings.HasSuffix(c[2], "/") {
				t.Errorf("%s has the command %s, and there is no %s: %v", path, c[0], files, err)
			}
		}
		return nil
	})
	must.OK(t, err)
	if links < 20 || commands < 20 {
		t.Errorf("%d links, %d commands", links, commands)
	}
}

// anchors returns the link targets of a page's headings.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, h := range headline.FindAllStringSubmatch(page, -1) {
		slug := unslug.ReplaceAllString(strings.ToLower(h[1]), "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(path))(t))
}

// The picture of the states names the exported statuses, and the reasons for which an unfinished analysis waits.
func TestStates(t *testing.T) {
	var picture struct {
		Groups []struct {
			Class string   `xml:"class,attr"`
			Texts []string `xml:"text"`
		} `xml:"g"`
	}
	must.OK(t, xml.Unmarshal([]byte(read(t, "states.svg")), &picture))
	var statuses, others []string
	for _, g := range picture.Groups {
		if g.Class == "status" {
			statuses = append(statuses, g.Texts...)
		} else {
			others = append(others, g.Texts...)
		}
	}

	want := []string{analysislock.Queued, analysislock.Processing, analysislock.Ready, analysislock.Failed}
	if !slices.Equal(statuses, want) {
		t.Errorf("states.svg has the statuses %q, want %q", statuses, want)
	}
	for _, reason := range []string{analysislock.Waiting, analysislock.Suspect} {
		if !slices.Contains(others, reason) {
			t.Errorf("states.svg does not name %q", reason)
		}
	}
	if !strings.Contains(read(t, "ARCHITECTURE.md"), "](states.svg)") {
		t.Error("ARCHITECTURE.md does not show states.svg")
	}
}
