package browser

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"taskguard/internal/testing/examplestest"
)

// renewing takes the project as `lease`, and waits for a heartbeat.
const renewing = `(async () => {
	globalThis.lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 2000 });
	await next('lock:renewed');
	return [lease.strategy, readonly];
})()`

// imported imports the module from url, as load does.
func (b *Tab) imported(url string) {
	b.T.Helper()
	b.Eval(`import('` + url + `').then((module) => { globalThis.locks = module; globalThis.events = []; module.subscribeAllLockEvents((event) => events.push(event)); })`)
}

// The heartbeats come from the Worker, as the page has no timers. Names to keep and an
// old target make the bundler add calls of its own to each function.
func TestTheWorkersRunInABundleAndFromAnotherOrigin(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	esbuild := filepath.Join(examplestest.Modules(t, paths[1], web+"testdata"), "esbuild-wasm", "bin", "esbuild")
	t.Parallel()
	dir := t.TempDir()
	examplestest.Copy(t, dir, web+"locks.js", web+"page.css")
	for name, text := range map[string]string{
		"app.html": `<!doctype html><script type="module" src="app.min.js"></script>`,
		"app.js":   `import * as locks from './locks.js'; fetch('/started'); globalThis.events = []; globalThis.locks = locks;`,
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	bundle := exec.CommandContext(t.Context(), paths[0], esbuild,
		"app.js", "--bundle", "--minify", "--format=esm", "--keep-names", "--target=es2016", "--outfile=app.min.js")
	bundle.Dir = dir
	if out, err := bundle.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var started atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/started" {
			started.Add(1)
		}
		w.Header().Set("Access-Control-Allow-Origin", "*")
		http.FileServer(http.Dir(dir)).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	for strategy, before := range strategies {
		bundled := p.Open(server.URL+"/app.html", instrumented, before, serverless, withoutTimers)
		bundled.Is(`globalThis.locks`)
		other := p.Open(s.url+"/page.css", instrumented, before, serverless, withoutTimers)
		other.imported(server.URL + "/locks.js")
		for _, b := range []*Tab{bundled, other} {
			b.want(renewing, `["`+strategy+`",[]]`)
			b.want(`locks.releaseProjectLock(lease).then(file)`, `"NotFoundError"`)
			b.Close()
		}
		if got := started.Swap(0); got != 1 {
			t.Errorf("%s: the application ran %d times", strategy, got)
		}
	}
}

func TestAPolicyWithoutBlobWorkersRefusesTheFileAndKeepsTheWebLock(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		http.FileServer(http.Dir(web)).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p := NewProfile(t)
	for strategy, want := range map[string]string{
		"web-lock":  `["web-lock",[]]`,
		"file-lock": `["acquire-denied",false,"no_worker"]`,
	} {
		b := p.load(&lockSite{url: server.URL}, strategies[strategy], serverless)
		b.want(renewing+`.catch(({ code, retryable, context }) => [code, retryable, context.error])`, want)
		b.Close()
	}
}
