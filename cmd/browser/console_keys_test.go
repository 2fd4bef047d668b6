package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp/kb"
)

// controls are the roles of what a keyboard reaches.
var controls = []string{"link", "button", "textbox", "searchbox", "combobox", "checkbox", "radio", "DisclosureTriangle"}

// heard is what a screen reader says of an element: its role and name, such as "button: Record the answer".
type heard struct {
	role, name       string
	focused, checked bool
}

func (h heard) String() string { return h.role + ": " + h.name }

// tree returns what a screen reader finds on the page, in its order.
func (b *Tab) tree() (all []heard) {
	b.T.Helper()
	text := func(v *accessibility.Value) string {
		var value any
		if v == nil || json.Unmarshal(v.Value, &value) != nil {
			return ""
		}
		return strings.Join(strings.Fields(fmt.Sprint(value)), " ")
	}
	for _, node := range Call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		h := heard{role: text(node.Role), name: text(node.Name)}
		if node.Ignored || h.role == "RootWebArea" {
			continue
		}
		for _, p := range node.Properties {
			is := text(p.Value) == "true"
			h.focused = h.focused || is && p.Name == accessibility.PropertyNameFocused
			h.checked = h.checked || is && p.Name == accessibility.PropertyNameChecked
		}
		all = append(all, h)
	}
	return all
}

// hears waits until a screen reader finds an element whose role and name begin like this, and returns it.
func (b *Tab) hears(begin string) heard {
	b.T.Helper()
	var all []heard
	i := -1
	if !until(func() bool {
		all = b.tree()
		i = slices.IndexFunc(all, func(h heard) bool { return strings.HasPrefix(h.String(), begin) })
		return i >= 0
	}) {
		b.T.Fatalf("nothing is called %q in %v", begin, all)
	}
	return all[i]
}

// useNamed presses Tab until the focus is on the control with this role and name, and then these keys.
func (b *Tab) useNamed(name string, keys ...string) {
	b.T.Helper()
	var passed []heard
	for range 120 {
		b.Press(kb.Tab)
		all := b.tree()
		i := slices.IndexFunc(all, func(h heard) bool { return h.focused })
		if i < 0 {
			continue
		}
		if all[i].String() == name {
			b.Press(keys...)
			return
		}
		passed = append(passed, all[i])
	}
	b.T.Fatalf("Tab does not lead to %q, but to %q", name, passed)
}

// An operator with a keyboard and a screen reader goes by roles and names alone.
func TestConsole_ScreenReader(t *testing.T) {
	t.Parallel()
	s := withStates(t)
	b := s.open("/analysis?id=held")
	b.Focus()
	b.Show("light", 1280)
	b.hears("StaticText: running for")
	b.useNamed("link: Cancel analysis…", kb.Enter)
	b.hears("heading: Cancel this analysis?")
	b.useNamed("button: Cancel analysis", kb.Enter)
	b.hears("StaticText: Cancelled. ")

	b.Go(s.url)
	b.useNamed("combobox: Code", "exit_1", kb.Enter)
	b.Is(`location.search.includes('code=exit_1')`)
	b.useNamed("link: Requeue… all that match", kb.Enter)
	b.hears("heading: Requeue 1?")
	b.useNamed("button: Requeue 1", kb.Enter)
	b.hears("StaticText: 1 requeued.")

	b.Go(s.url + "/analysis?id=uncertain")
	b.hears("heading: Did charge happen?")
	b.useNamed("link: It did not happen… charge of uncertain", kb.Enter)
	if no := b.hears("radio: No, it did not happen"); !no.checked {
		t.Error("the answer is not chosen")
	}
	b.useNamed("button: Record the answer", kb.Enter)
	b.hears("StaticText: Resolved. ")
	s.wantStatus("held", "FAILED")
	s.wantStatus("failed", "QUEUED")
	s.wantStatus("uncertain", "QUEUED")
}

// Each control has a name that no control with another effect has.
func TestConsole_Names(t *testing.T) {
	t.Parallel()
	s := withStates(t)
	b := s.open("/")
	for _, path := range []string{
		"/", "/failures", "/run-times", "/analysis?id=held", "/analysis?id=failed", "/analysis?id=waits",
		"/analysis?id=uncertain", "/requeue?id=failed", "/resolve?id=uncertain&name=charge",
		"/failures/requeue?code=exit_1",
	} {
		b.Go(s.url + path)
		b.Is(`document.getElementById('main')`)
		known := map[string]bool{}
		for _, h := range b.tree() {
			if !slices.Contains(controls, h.role) {
				continue
			}
			if h.name == "" {
				t.Errorf("%s: a %s has no name", path, h.role)
			}
			if h.role != "button" && !strings.Contains(h.name, "…") {
				continue // links to one page may be called the same
			}
			if known[h.String()] {
				t.Errorf("%s: two are called %q", path, h)
			}
			known[h.String()] = true
		}
	}
}
