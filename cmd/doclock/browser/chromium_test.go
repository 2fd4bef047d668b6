package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"taskguard/cmd/chromiumtest"
)

const patience = chromiumtest.Patience

// profile is a Chromium whose tabs know the lock's page.
type profile struct{ *chromiumtest.Profile }

func newProfile(t *testing.T) *profile {
	t.Helper()
	return &profile{chromiumtest.NewProfile(t)}
}

// in is the profile for a subtest.
func (p *profile) in(t *testing.T) *profile { return &profile{p.In(t)} }

// tab is a page of a profile.
type tab struct{ *chromiumtest.Tab }

// open is a new tab at url in which scripts run before the page's own.
func (p *profile) open(url string, scripts ...string) *tab {
	b := &tab{p.Open(url, scripts...)}
	b.Says = `'last events: ' + JSON.stringify(globalThis.events?.slice(-5))`
	return b
}

// load is a tab with the module as `locks` and its events, in order, in `events`.
func (p *profile) load(url string, scripts ...string) *tab {
	b := p.open(url, scripts...)
	b.Eval(`import('/locks.js').then((module) => {
		globalThis.locks = module;
		globalThis.events = [];
		globalThis.unsubscribe = module.subscribeLockEvents((event) => events.push(event));
	})`)
	return b
}

// shows waits until the page's state is that: free, mine, other.
func (b *tab) shows(state string) {
	b.T.Helper()
	b.Is(fmt.Sprintf(`document.getElementById('state').dataset.state === %q`, state))
}

// events are those so far, each in the words of brief.
func (b *tab) events() []string {
	b.T.Helper()
	var all []event
	if err := json.Unmarshal([]byte(b.Eval(`events`)), &all); err != nil {
		b.T.Fatal(err)
	}
	lines := make([]string, len(all))
	for i := range all {
		lines[i] = all[i].brief()
	}
	return lines
}

// event is an event of the module, as far as tests compare it.
type event struct {
	Type      string
	Strategy  string
	Retry     *int
	Code      string
	Retryable *bool
	WaitMs    *int
	Warning   string
	Force     *bool
	Reason    string
	Info      struct {
		Reason string
	}
}

// brief is the event's type and what of its details is certain.
func (e *event) brief() string {
	words := []string{strings.TrimPrefix(e.Type, "lock:")}
	for _, w := range []string{e.Strategy, e.Code, e.Warning, e.Reason, e.Info.Reason} {
		if w != "" {
			words = append(words, w)
		}
	}
	if e.Retry != nil {
		words = append(words, fmt.Sprintf("retry=%d", *e.Retry))
	}
	if e.Retryable != nil {
		words = append(words, fmt.Sprintf("retryable=%t", *e.Retryable))
	}
	if e.WaitMs != nil {
		words = append(words, fmt.Sprintf("wait=%d", *e.WaitMs))
	}
	if e.Force != nil && *e.Force {
		words = append(words, "force")
	}
	return strings.Join(words, " ")
}
