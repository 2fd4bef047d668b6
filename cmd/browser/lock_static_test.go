package browser

import (
	"context"
	_ "embed" // a script
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"taskguard/internal/testing/examplestest"
)

const web = "../../locks/document/server/web/"

// newStaticSite serves the module, page.css and what more is in dir, and has no lock.
func newStaticSite(t *testing.T, dir string) *lockSite {
	t.Helper()
	examplestest.Copy(t, dir, web+"locks.js", web+"page.css")
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return &lockSite{url: server.URL}
}

// strategies are the scripts that make a page use each strategy.
var strategies = map[string]string{"web-lock": "", "file-lock": withoutWebLocks}

// The calls of the seeds compile, and run without a server.
func TestServerless_Seeds(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	examplestest.Copy(t, dir, web+"testdata/seed.ts", web+"testdata/seed000.ts", web+"locks.d.ts")
	tsc := filepath.Join(examplestest.Modules(t, paths[1], web+"testdata"), "typescript", "bin", "tsc")
	compile := exec.CommandContext(t.Context(), paths[0], tsc, "--strict", "--target", "es2022", "--module", "es2022",
		"--moduleResolution", "bundler", "--lib", "es2022,dom", "seed.ts", "seed000.ts")
	compile.Dir = dir
	examplestest.Output(t, compile)
	s, p := newStaticSite(t, dir), NewProfile(t)
	for strategy, c := range map[string]struct{ denied, warnings, ttl string }{
		"web-lock":  {"acquire-denied", "0", "25000"},
		"file-lock": {"fallback-conflict", "3", "30000"},
	} {
		b := p.Open(s.url+"/page.css", strategies[strategy])
		values := strings.NewReplacer("STRATEGY", strategy, "DENIED", c.denied, "WARNINGS", c.warnings, "TTL", c.ttl)
		b.want(`import('/seed.js').then(({ run }) => run())`, values.Replace(`{"plain":true,"strategy":"STRATEGY",`+
			`"denied":"DENIED","result":TTL,"failed":"mine","aborted":"AbortError",`+
			`"readonly":[["lock:readonly-entered","DENIED"],["autosave.lock.readonly","DENIED"]],`+
			`"warnings":WARNINGS,"events":true,"acquired":1,"trusted":[TTL,30000],"same":true}`))
	}
}

// Without a server, each sequence of events is exact in both strategies.
func TestServerless_Events(t *testing.T) {
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	for strategy, c := range map[string]struct{ denied, conflict, unavailable string }{
		"web-lock":  {"acquire-denied", "", ""},
		"file-lock": {"fallback-conflict", "warning fallback-degraded; ", noLocks + "; "},
	} {
		b := p.load(s, strategies[strategy], serverless)
		values := strings.NewReplacer("CONFLICT ", c.conflict, "STRATEGY", strategy, "DENIED", c.denied)
		wantEvents := func(events string) {
			t.Helper()
			b.wantEvents(c.unavailable + values.Replace(events))
			b.Is(`clocks.started === clocks.ended`)
			b.want(`navigator.locks?.query().then(({ held }) => held.length) ?? 0`, "0")
		}
		b.want(`(async () => {
			const lease = await take();
			await locks.releaseProjectLock(await locks.renewProjectLock(lease));
			return [lease.strategy, await file()];
		})()`, `["`+strategy+`","NotFoundError"]`)
		wantEvents("attempt STRATEGY retry=0; acquired; renew-scheduled; attempt STRATEGY retry=0; renewed retry=0; " +
			"renew-scheduled; release-requested; attempt STRATEGY retry=0; released STRATEGY")

		b.Eval(`reset()`)
		b.Eval(`import('/locks.js?holder').then(async (module) => {
			globalThis.holder = module;
			globalThis.held = await holder.acquireProjectLock(quick);
		})`)
		b.want(`denied({ retryLimit: 2 }).then((failed) => [failed, ...readonly])`, `["`+c.denied+`","`+c.denied+`"]`)
		b.Eval(`holder.releaseProjectLock(held)`)
		wantEvents("attempt STRATEGY retry=0; CONFLICT error STRATEGY DENIED retry=0 retryable; " +
			"waiting STRATEGY retry=0 wait=10; attempt STRATEGY retry=1; CONFLICT error STRATEGY DENIED retry=1; " +
			"readonly-entered DENIED")
		b.Close()
	}
}

//go:embed testdata/static.js
var static string

// A lock without a server is exclusive.
func TestServerless(t *testing.T) {
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	for strategy, before := range strategies {
		t.Run(strategy, func(t *testing.T) {
			p.In(t).load(s, before, serverless, static).runCases(func(b *Tab) {
				b.Eval(`folder().then((dir) => dir.removeEntry('.lock')).catch(() => {})`)
				b.want(`files()`, "[]")
			})
		})
	}
}

// The lock of a tab that ends is taken.
func TestServerless_Crash(t *testing.T) {
	t.Parallel()
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	first, second := p.load(s, withoutWebLocks, serverless), p.load(s, withoutWebLocks, serverless)
	first.Eval(`take({ ttlMs: 10000, retryLimit: 20 })`)
	second.want(`denied({ retryLimit: 1 })`, `"fallback-conflict"`)
	crash, done := context.WithTimeout(first.Ctx, time.Second) // there is no answer
	_, _ = chromedp.Call(crash, page.Crash, cdp.Empty{})
	done()
	second.Eval(`take({ backoff: { initialMs: 100, maxAttempts: 99 }, backoffMs: undefined })`)
	// A page that is left frees its lock at once: the TTL of this one is not waited for.
	third := p.load(s, withoutWebLocks, serverless)
	second.Go(s.url + "/page.css?left")
	third.Eval(`take({ backoffMs: [100], retryLimit: 99 }).then((lease) => locks.releaseProjectLock(lease))`)
	third.want(`events.filter(({ type }) => type === 'lock:attempt').length < 99`, "true")
}

// A lock outlives its web server.
func TestServerless_Offline(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.FileServer(http.Dir(web)))
	defer server.Close()
	p, tabs := NewProfile(t), map[string]*Tab{}
	for strategy, before := range strategies {
		tabs[strategy] = p.load(&lockSite{url: server.URL}, before, serverless)
	}
	server.CloseClientConnections()
	server.Close()
	for strategy, b := range tabs {
		b.Eval(`globalThis.kept = locks.withProjectLock(async (lease) => {
			await new Promise((resolve) => setTimeout(resolve, 8000));
			return [lease.strategy, await confirms(lease)];
		}, { ...quick, ttlMs: 7000, resource: '` + strategy + `' }).catch(({ code }) => code), 0`)
	}
	for strategy, b := range tabs {
		b.want(`kept`, `["`+strategy+`","none"]`)
	}
}
