package chromiumtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Tab is a page of a profile.
type Tab struct {
	T     *testing.T
	Ctx   context.Context // of the tab: for chromedp
	Close func()
	Says  string // a script whose value is added to failures; may be empty
}

// Open opens a tab at url in which scripts run before the page's own.
func (p *Profile) Open(url string, scripts ...string) *Tab {
	p.t.Helper()
	ctx, closed := chromedp.NewContext(p.ctx)
	p.t.Cleanup(closed)
	b := &Tab{T: p.t, Ctx: ctx, Close: closed}
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as the context of this call
		p.t.Fatal(err)
	}
	for _, s := range scripts {
		Call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: s})
	}
	b.Go(url)
	return b
}

// Go opens url in b and returns when it is loaded.
func (b *Tab) Go(url string) {
	b.T.Helper()
	b.Do(chromedp.Navigate(url))
}

// Do runs these actions, one after the other.
func (b *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.T.Helper()
	ctx, done := context.WithTimeout(b.Ctx, Patience)
	defer done()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.T.Fatal(err)
	}
}

// Call runs a command of the DevTools protocol in b.
func Call[P, R any](b *Tab, command cdp.Command[P, R], params P) R {
	b.T.Helper()
	ctx, done := context.WithTimeout(b.Ctx, Patience)
	defer done()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.T.Fatal(err)
	}
	return result
}

// Eval returns the value of script, awaited, in JSON; empty for undefined.
func (b *Tab) Eval(script string) string {
	b.T.Helper()
	v, err := b.try(script)
	if err != nil {
		b.T.Fatalf("%s\n%v", script, err)
	}
	return v
}

func (b *Tab) try(script string) (string, error) {
	ctx, done := context.WithTimeout(b.Ctx, Patience)
	defer done()
	return chromedp.Run(ctx, chromedp.Evaluate[string](
		`(async () => JSON.stringify(await (`+script+`)) ?? '')()`, chromedp.EvalAwaitPromise))
}

// Is waits until condition holds.
func (b *Tab) Is(condition string) {
	b.T.Helper()
	b.until(condition)
}

// Comes waits until a page is loaded for which condition holds. On the pages before,
// condition may fail.
func (b *Tab) Comes(condition string) {
	b.T.Helper()
	b.until(`document.readyState === 'complete' && (` + condition + `)`)
}

func (b *Tab) until(condition string) {
	b.T.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		v, err := b.try(`Boolean(` + condition + `)`)
		if v == "true" {
			return
		}
		if time.Now().After(deadline) {
			more := ""
			if b.Says != "" {
				more = "\n" + b.Eval(b.Says)
			}
			b.T.Fatalf("never true: %s (%v)\nthe page shows %s%s", condition, err, b.Eval(`document.body.innerText.slice(0, 1000)`), more)
		}
	}
}

// Click clicks the element with this id, once it can be.
func (b *Tab) Click(id string) {
	b.T.Helper()
	b.Is(fmt.Sprintf(`!document.getElementById(%q).disabled`, id))
	b.Do(chromedp.Click(chromedp.ID(id)))
}

// Press presses keys, one after the other, such as those of package kb.
func (b *Tab) Press(keys ...string) {
	b.T.Helper()
	for _, k := range keys {
		b.Do(chromedp.KeyEvent(k))
	}
}
