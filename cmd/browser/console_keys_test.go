package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp/kb"
)

// controls are the roles of what a keyboard reaches.
var controls = []string{"link", "button", "textbox", "searchbox", "combobox", "checkbox", "radio", "DisclosureTriangle"}

// heard is what a screen reader says of an element: its role and name, such as "button: Record the answer".
type heard struct {
	text    string
	control bool
	focused bool
	checked bool
}

// tree returns what a screen reader finds on the page, in its order.
func (b *Tab) tree() (all []heard) {
	b.T.Helper()
	text := func(v *accessibility.Value) string {
		var value any
		if v == nil || json.Unmarshal(v.Value, &value) != nil {
			return ""
		}
		return fmt.Sprint(value)
	}
	tree := Call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	for _, node := range tree.Nodes {
		if role := text(node.Role); !node.Ignored && role != "RootWebArea" {
			h := heard{text: role + ": " + strings.Join(strings.Fields(text(node.Name)), " "), control: slices.Contains(controls, role)}
			for _, p := range node.Properties {
				h.focused = h.focused || p.Name == accessibility.PropertyNameFocused && text(p.Value) == "true"
				h.checked = h.checked || p.Name == accessibility.PropertyNameChecked && text(p.Value) == "true"
			}
			all = append(all, h)
		}
	}
	return all
}

// hears waits until a screen reader finds an element whose role and name begin like this, and returns it.
func (b *Tab) hears(begin string) heard {
	b.T.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(100 * time.Millisecond) {
		all := b.tree()
		if i := slices.IndexFunc(all, func(h heard) bool { return strings.HasPrefix(h.text, begin) }); i >= 0 {
			return all[i]
		}
		if time.Now().After(deadline) {
			b.T.Fatalf("nothing is called %q in %v", begin, all)
		}
	}
}

// tabToNamed presses Tab until the focus is on the control with this role and name.
func (b *Tab) tabToNamed(name string) {
	b.T.Helper()
	var passed []string
	for range 120 {
		b.Press(kb.Tab)
		all := b.tree()
		i := slices.IndexFunc(all, func(h heard) bool { return h.focused })
		if i >= 0 && all[i].text == name {
			return
		}
		if i >= 0 {
			passed = append(passed, all[i].text)
		}
	}
	b.T.Fatalf("Tab does not lead to %q, but to %q", name, passed)
}

// An operator with a keyboard and a screen reader goes by roles and names alone.
func TestAnOperatorCancelsRequeuesAndResolvesByWhatAScreenReaderSays(t *testing.T) {
	t.Parallel()
	s := withStates(t)
	b := s.open("/analysis?id=held")
	b.Focus()
	b.Show("light", 1280)
	b.hears("StaticText: running for")
	b.tabToNamed("link: Cancel analysis…")
	b.Press(kb.Enter)
	b.hears("heading: Cancel this analysis?")
	b.tabToNamed("button: Cancel analysis")
	b.Press(kb.Enter)
	b.hears("StaticText: Cancelled. ")

	b.Go(s.url)
	b.tabToNamed("combobox: Code")
	b.Press("exit_1", kb.Enter)
	b.Is(`location.search.includes('code=exit_1')`)
	b.tabToNamed("link: Requeue… all that match")
	b.Press(kb.Enter)
	b.hears("heading: Requeue 1?")
	b.tabToNamed("button: Requeue 1")
	b.Press(kb.Enter)
	b.hears("StaticText: 1 requeued.")

	b.Go(s.url + "/analysis?id=uncertain")
	b.hears("heading: Did charge happen?")
	b.tabToNamed("link: It did not happen… charge of uncertain")
	b.Press(kb.Enter)
	if no := b.hears("radio: No, it did not happen"); !no.checked {
		t.Error("the answer is not chosen")
	}
	b.tabToNamed("button: Record the answer")
	b.Press(kb.Enter)
	b.hears("StaticText: Resolved. ")

	got := fmt.Sprint(s.Fields(t, "held")["status"], s.Fields(t, "failed")["status"], s.Fields(t, "uncertain")["status"])
	if got != "FAILEDQUEUEDQUEUED" {
		t.Errorf("the states are %s", got)
	}
}

func TestEachControlHasANameThatNoOtherEffectHas(t *testing.T) {
	t.Parallel()
	s := withStates(t)
	b := s.open("/")
	for _, path := range []string{
		"/", "/failures", "/run-times", "/analysis?id=held", "/analysis?id=failed", "/analysis?id=waits", "/analysis?id=uncertain",
		"/requeue?id=failed", "/resolve?id=uncertain&name=charge", "/failures/requeue?code=exit_1",
	} {
		b.Go(s.url + path)
		b.Is(`document.getElementById('main')`)
		buttons := map[string]bool{}
		for _, h := range b.tree() {
			role, name, _ := strings.Cut(h.text, ": ")
			if h.control && name == "" {
				t.Errorf("%s: a %s has no name", path, role)
			}
			if h.control && (role == "button" || strings.Contains(name, "…")) {
				if buttons[h.text] {
					t.Errorf("%s: two are called %q", path, h.text)
				}
				buttons[h.text] = true
			}
		}
	}
}
