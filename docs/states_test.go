package docs

import (
	"encoding/xml"
	"slices"
	"strings"
	"testing"

	"taskguard/internal/testing/must"

	"taskguard/lease/analysislock"
)

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
