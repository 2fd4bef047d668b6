package browser

import (
	"context"
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

// serverless makes the helpers of load work without a server: quick locks the project.
const serverless = `
	globalThis.quick = { ...quick, resource: undefined };
	// file is the content of project/.lock, or the name of the error.
	globalThis.folder = () => navigator.storage.getDirectory().then((root) => root.getDirectoryHandle('project', { create: true }));
	globalThis.file = async () => {
		try {
			return await (await (await (await folder()).getFileHandle('.lock')).getFile()).text();
		} catch (error) { return error.name; }
	};
	globalThis.write = async (text) => {
		const to = await (await (await folder()).getFileHandle('.lock', { create: true })).createWritable();
		await to.write(text);
		await to.close();
	};
	globalThis.record = (ttl, age = 0) => JSON.stringify({ uuid: 'another', mtime: new Date(Date.now() - age).toISOString(), ttl });`

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

func TestTheSeedsCallsCompileAndRunWithoutAServer(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := t.TempDir()
	examplestest.Copy(t, dir, web+"testdata/seed.ts", web+"testdata/seed000.ts", web+"locks.d.ts")
	compile := exec.CommandContext(t.Context(), paths[0], filepath.Join(examplestest.Modules(t, paths[1], web+"testdata"), "typescript", "bin", "tsc"),
		"--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--lib", "es2022,dom", "seed.ts", "seed000.ts")
	compile.Dir = dir
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s, p := newStaticSite(t, dir), NewProfile(t)
	for strategy, c := range map[string]struct{ before, denied, warnings, ttl string }{
		"web-lock":  {"", "acquire-denied", "0", "25000"},
		"file-lock": {withoutWebLocks, "fallback-conflict", "3", "30000"},
	} {
		b := p.Open(s.url+"/page.css", c.before)
		b.want(`import('/seed.js').then(({ run }) => run())`, strings.NewReplacer("STRATEGY", strategy, "DENIED", c.denied, "WARNINGS", c.warnings, "TTL", c.ttl).Replace(
			`{"plain":true,"strategy":"STRATEGY","denied":"DENIED","result":TTL,"failed":"mine","aborted":"AbortError",`+
				`"readonly":[["lock:readonly-entered","DENIED"],["autosave.lock.readonly","DENIED"]],"warnings":WARNINGS,"events":true,"acquired":1,"trusted":[TTL,30000],"same":true}`))
	}
}

func TestEachSequenceWithoutAServerIsExactInBothStrategies(t *testing.T) {
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	for strategy, c := range map[string]struct{ before, denied, conflict, unavailable string }{
		"web-lock":  {"", "acquire-denied", "", ""},
		"file-lock": {withoutWebLocks, "fallback-conflict", "warning fallback-degraded; ", noLocks + "; "},
	} {
		b := p.load(s, c.before, serverless)
		wantEvents := func(events string) {
			t.Helper()
			b.wantEvents(c.unavailable + strings.NewReplacer("CONFLICT ", c.conflict, "STRATEGY", strategy, "DENIED", c.denied).Replace(events))
			b.Is(`clocks.started === clocks.ended`)
			b.want(`navigator.locks?.query().then(({ held }) => held.length) ?? 0`, "0")
		}
		b.want(`(async () => {
			const lease = await locks.acquireProjectLock(quick);
			await locks.releaseProjectLock(await locks.renewProjectLock(lease));
			return [lease.strategy, await file()];
		})()`, `["`+strategy+`","NotFoundError"]`)
		wantEvents("attempt STRATEGY retry=0; acquired; renew-scheduled; attempt STRATEGY retry=0; renewed retry=0; renew-scheduled; " +
			"release-requested; attempt STRATEGY retry=0; released STRATEGY")

		b.Eval(`reset()`)
		b.Eval(`import('/locks.js?holder').then((module) => { globalThis.holder = module; return holder.acquireProjectLock(quick); }).then((held) => { globalThis.held = held; })`)
		b.want(`failure(locks.acquireProjectLock({ ...quick, retryLimit: 2 })).then((failed) => [failed, ...readonly])`, `["`+c.denied+`","`+c.denied+`"]`)
		b.Eval(`holder.releaseProjectLock(held)`)
		wantEvents("attempt STRATEGY retry=0; CONFLICT error STRATEGY DENIED retry=0 retryable; waiting STRATEGY retry=0 wait=10; " +
			"attempt STRATEGY retry=1; CONFLICT error STRATEGY DENIED retry=1; readonly-entered DENIED")
		b.Close()
	}
}

func TestALockWithoutAServerIsExclusive(t *testing.T) {
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	web, file := p.load(s, serverless), p.load(s, withoutWebLocks, serverless)
	const failing = `failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 })).then((failed) => [failed, events.some(({ type }) => type === 'lock:fallback-engaged')])`
	for _, c := range []struct {
		name         string
		b            *Tab
		before       string
		script, want string
	}{
		{"a Web Lock of the page's own is held, not unavailable: no fallback", web,
			`new Promise((resolve) => navigator.locks.request('imgponic:project', () => { resolve(); return new Promise((done) => { globalThis.done = done; }); }))`,
			failing + `.then((got) => { done(); return got; })`, `["acquire-denied",false]`},
		{"a tab with Web Locks respects the file of a tab without", web, `write(record(1e6))`, failing, `["acquire-denied",false]`},
		{"a tab that prefers the file respects a Web Lock", web, `0`, `locks.withProjectLock(
			() => failure(locks.acquireProjectLock({ ...quick, retryLimit: 1, preferredStrategy: 'file-lock' })), quick)`, `"fallback-conflict"`},
		{"of eight acquisitions of an expired file exactly one succeeds", file, `write(record(1000, 1000).replace('another', 'another'.repeat(50)))`, `Promise.all(Array.from({ length: 8 },
			() => locks.acquireProjectLock({ ...quick, retryLimit: 1 }).then((lease) => lease, () => null))).then(async (all) => {
				const leases = all.filter(Boolean);
				const { uuid, mtime, ttl, owner, token } = JSON.parse(await file());
				for (const lease of leases) await locks.releaseProjectLock(lease);
				return [leases.length, uuid === leases[0].leaseId, ttl, token === leases[0].token, /^http-127-0-0-1.*-\w{8}$/.test(owner),
					/^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/.test(uuid), Math.abs(Date.parse(mtime) - Date.now()) < 6e4];
			})`, `[1,true,30000,true,true,true,true]`},
		{"an unreadable file is held until one TTL after its modification", file, `write('{"uuid":')`, failing, `["fallback-conflict",true]`},
		{"a file whose times contradict one another is held likewise", file, `write(record(1000, 2 * 86_400_000))`, failing, `["fallback-conflict",true]`},
		{"a file that another clock has dated ahead is held while it changes, and for one TTL after", file, `0`, `(async () => {
			const got = [];
			for (const ahead of [3_600_000, 3_600_001, 3_600_002]) {
				await write(record(1500, -ahead));
				got.push(await failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 })));
				await new Promise((resolve) => setTimeout(resolve, 800));
			}
			const lease = await locks.acquireProjectLock({ ...quick, backoffMs: [100], retryLimit: 99 });
			const { mtime } = JSON.parse(await file());
			await locks.releaseProjectLock(lease);
			return [...got, Math.abs(Date.parse(mtime) - Date.now()) < 6e4];
		})()`, `["fallback-conflict","fallback-conflict","fallback-conflict",true]`},
		{"tokens grow, also if a clock was set back", file, `write(JSON.stringify({ ...JSON.parse(record(1000, 1000)), token: Date.now() + 1e6 }))`, `(async () => {
			const before = JSON.parse(await file()).token;
			return (await locks.withProjectLock(({ token }) => token, quick)) - before;
		})()`, `1`},
		{"the token of a Web Lock is the time", web, `0`, `locks.withProjectLock(({ token }) => Math.abs(Date.now() - token) < 6e4, quick)`, `true`},
		{"a lease whose file another has taken is stale, and that file stays", file, `0`, `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			await write(record(1e6));
			const failed = [await failure(locks.renewProjectLock(lease)), await failure(locks.releaseProjectLock(lease, { force: true }))];
			return [...failed, readonly, JSON.parse(await file()).uuid];
		})()`, `["lease-stale","none",["lease-stale"],"another"]`},
		{"a page that ends after its deadline leaves the file, which another may have taken", file, `0`, `(async () => {
			await locks.acquireProjectLock(quick);
			await write(record(1e6));
			performance.now = () => Infinity;
			dispatchEvent(new PageTransitionEvent('pagehide'));
			delete performance.now;
			return JSON.parse(await file()).uuid;
		})()`, `"another"`},
		{"a Web Lock is renewed without its query", web, `0`, `locks.withProjectLock(async (lease) => {
			navigator.locks.query = () => Promise.reject(new TypeError('no query'));
			const outcomes = [await failure(locks.renewProjectLock(lease)), await failure(locks.confirmProjectLock(lease))];
			delete navigator.locks.query;
			return outcomes;
		}, quick)`, `["none","renew-failed"]`},
		{"a lock of a longer name is another one", file, `0`, `locks.withProjectLock(
			() => locks.withProjectLock(() => 'both', { ...quick, resource: 'imgponic:project-2', retryLimit: 1 }), quick)`, `"both"`},
		{"a Web Lock of a longer name confirms nothing", web, `0`, `locks.withProjectLock((lease) => {
			navigator.locks.query = async () => ({ held: [{ name: 'imgponic:project-2' }] });
			return failure(locks.confirmProjectLock(lease)).finally(() => { delete navigator.locks.query; });
		}, quick).catch(({ code }) => [code, readonly])`, `["lease-stale",["lease-stale"]]`},
		{"without https, Web Locks and files are missing, and the error says so", file, `0`, `(async () => {
			const { storage } = navigator;
			Object.defineProperty(navigator, 'storage', { value: undefined, configurable: true });
			Object.defineProperty(globalThis, 'isSecureContext', { value: false, configurable: true, writable: true });
			const error = await locks.acquireProjectLock(quick).catch((error) => error);
			globalThis.isSecureContext = true;
			const other = await locks.acquireProjectLock(quick).catch((error) => error);
			Object.defineProperty(navigator, 'storage', { value: storage, configurable: true });
			return [error.code, error.retryable, error.context.error, error.message, other.context.error];
		})()`, `["acquire-denied",false,"insecure_context","project lock: acquire-denied: this page needs https, or localhost: other pages have neither Web Locks nor files","no_file_system"]`},
		{"a lease is confirmed right before a write", file, `0`, `locks.withProjectLock(async (lease) => {
			const { token, validForMs } = await locks.confirmProjectLock(lease);
			await (await folder()).removeEntry('.lock');
			return [token === lease.token, validForMs > 0 && validForMs <= 30000, await failure(locks.confirmProjectLock(lease))];
		}, quick).catch(({ code }) => [code, readonly])`, `["lease-stale",["lease-stale"]]`},
		{"a Web Lock is confirmed, until another page steals it", web, `0`, `locks.withProjectLock(async (lease, lost) => {
			const { token, validForMs } = await locks.confirmProjectLock(lease);
			await navigator.locks.request('imgponic:project', { steal: true }, () => {});
			await new Promise((resolve) => { if (lost.aborted) resolve(); lost.onabort = resolve; });
			readonly.push(token === lease.token, validForMs > 0 && validForMs <= 25000, await failure(locks.confirmProjectLock(lease)));
		}, quick).catch(({ code }) => [code, ...readonly])`, `["lease-stale","lease-stale",true,true,"lease-stale"]`},
		{"an abort during the acquisition leaves no file and is not read-only", file, `0`, `(async () => {
			const abort = new AbortController();
			const { postMessage } = Worker.prototype;
			Worker.prototype.postMessage = function (data) {
				postMessage.call(this, data);
				if (data.method === 'POST') abort.abort();
			};
			const failed = await failure(locks.acquireProjectLock({ ...quick, signal: abort.signal }));
			Worker.prototype.postMessage = postMessage;
			return [failed, await file(), readonly];
		})()`, `["AbortError","NotFoundError",[]]`},
		{"a heartbeat renews the file", file, `0`, `(async () => {
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 3000 });
			const { mtime } = JSON.parse(await file());
			await next('lock:renewed');
			const later = JSON.parse(await file());
			await locks.releaseProjectLock(lease);
			return [later.uuid === lease.leaseId, later.token === lease.token, Date.parse(later.mtime) > Date.parse(mtime)];
		})()`, `[true,true,true]`},
		{"each event is a line of telemetry with its fields, without an error's text", file, `0`, `(async () => {
			const lines = [];
			const stop = locks.subscribeLockTelemetry((line) => lines.push(line));
			const lease = await locks.acquireProjectLock(quick);
			await failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 }));
			await locks.renewProjectLock(lease);
			await locks.releaseProjectLock(lease);
			stop();
			const fields = {};
			for (const { feature, type, time, ...rest } of lines.map((line) => JSON.parse(line))) {
				if (feature === 'autosave' && Date.parse(time)) fields[type.replace('autosave.lock.', '')] = Object.keys(rest).sort().join(' ') + (rest.alias ?? '');
			}
			return [lines.join('').includes('project lock:'), fields];
		})()`, `[false,{"attempt":"leaseId retry strategy","error":"code retry retryable strategy","waiting":"retry strategy waitMs","fallback-engaged":"reason strategy",` +
			`"acquired":"expiresAt leaseId strategy","renew-scheduled":"expiresAt leaseId nextHeartbeatInMs strategy","warning":"warning",` +
			`"readonly-entered":"alias reason retryautosave.lock.readonly","renewed":"expiresAt leaseId retry strategy",` +
			`"release-requested":"expiresAt force leaseId strategy","released":"durationMs leaseId strategy"}]`},
		{"an abort ends a renewal's wait and the work's signal, not the lease", file, `0`, `(async () => {
			const abort = new AbortController();
			const { signal } = abort;
			return locks.withProjectLock(async (lease, lost) => {
				abort.abort();
				return [lost.aborted, await failure(locks.renewProjectLock(lease, { signal })), await failure(locks.confirmProjectLock(lease))];
			}, { ...quick, signal });
		})()`, `[true,"AbortError","none"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := c.b.In(t)
			b.Eval(`reset()`)
			b.Eval(c.before)
			b.want(c.script, c.want)
			b.Eval(`folder().then((dir) => dir.removeEntry('.lock')).catch(() => {})`)
			b.want(`folder().then(async (dir) => { const names = []; for await (const name of dir.keys()) names.push(name); return names; }).then((names) => names.filter((name) => name !== '.lock.guard'))`, "[]")
		})
	}
}

func TestALockOfATabThatEndsIsTaken(t *testing.T) {
	t.Parallel()
	s, p := newStaticSite(t, t.TempDir()), NewProfile(t)
	first, second := p.load(s, withoutWebLocks, serverless), p.load(s, withoutWebLocks, serverless)
	first.Eval(`locks.acquireProjectLock({ ...quick, ttlMs: 10000, retryLimit: 20 }).then((lease) => { globalThis.lease = lease; })`)
	second.want(`failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 }))`, `"fallback-conflict"`)
	crash, done := context.WithTimeout(first.Ctx, time.Second) // there is no answer
	_, _ = chromedp.Call(crash, page.Crash, cdp.Empty{})
	done()
	second.Eval(`locks.acquireProjectLock({ ...quick, backoff: { initialMs: 100, maxAttempts: 99 }, backoffMs: undefined }).then((lease) => { globalThis.lease = lease; })`)
	// A page that is left frees its lock at once: the TTL of this one is not waited for.
	third := p.load(s, withoutWebLocks, serverless)
	second.Go(s.url + "/page.css?left")
	third.Eval(`locks.acquireProjectLock({ ...quick, backoffMs: [100], retryLimit: 99 }).then((lease) => locks.releaseProjectLock(lease))`)
	third.want(`events.filter(({ type }) => type === 'lock:attempt').length < 99`, "true")
}

func TestALockOutlivesItsWebServer(t *testing.T) {
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
			return [lease.strategy, await failure(locks.confirmProjectLock(lease))];
		}, { ...quick, ttlMs: 7000, resource: '` + strategy + `' }).catch(({ code }) => code), 0`)
	}
	for strategy, b := range tabs {
		b.want(`kept`, `["`+strategy+`","none"]`)
	}
}
