// The cases of TestServerless, with Web Locks and without: a script, and what it returns. See instrumented.js and
// serverless.js for what they use.
globalThis.cases = navigator.locks ? {
  "a Web Lock of the page's own is held, not unavailable: no fallback": [() => new Promise((resolve) => {
    navigator.locks.request('imgponic:project', () => {
      const got = failing();
      resolve(got);
      return got;
    });
  }), ['acquire-denied', false]],
  'a tab with Web Locks respects the file of a tab without':
    [() => write(record(1e6)).then(failing), ['acquire-denied', false]],
  'a tab that prefers the file respects a Web Lock': [() => locks.withProjectLock(
    () => denied({ retryLimit: 1, preferredStrategy: 'file-lock' }), quick), 'fallback-conflict'],
  'the token of a Web Lock is the time': [() => locks.withProjectLock(({ token }) => recent(token), quick), true],
  'a Web Lock is renewed without its query': [() => locks.withProjectLock(async (lease) => {
    navigator.locks.query = () => Promise.reject(new TypeError('no query'));
    const outcomes = [await renews(lease), await confirms(lease)];
    delete navigator.locks.query;
    return outcomes;
  }, quick), ['none', 'renew-failed']],
  'a Web Lock of a longer name confirms nothing': [() => locks.withProjectLock((lease) => {
    navigator.locks.query = async () => ({ held: [{ name: 'imgponic:project-2' }] });
    return confirms(lease).finally(() => { delete navigator.locks.query; });
  }, quick).catch(({ code }) => [code, readonly]), ['lease-stale', ['lease-stale']]],
  'a Web Lock is confirmed, until another page steals it': [() => locks.withProjectLock(async (lease, lost) => {
    const { token, validForMs } = await locks.confirmProjectLock(lease);
    await navigator.locks.request('imgponic:project', { steal: true }, () => {});
    await new Promise((resolve) => { if (lost.aborted) resolve(); lost.onabort = resolve; });
    readonly.push(token === lease.token, validForMs > 0 && validForMs <= 25000, await confirms(lease));
  }, quick).catch(({ code }) => [code, ...readonly]), ['lease-stale', 'lease-stale', true, true, 'lease-stale']],
} : {
  'of eight acquisitions of an expired file exactly one succeeds': [async () => {
    await write(record(1000, 1000).replace('another', 'another'.repeat(50)));
    const all = Array.from({ length: 8 }, () => take({ retryLimit: 1 }).catch(() => null));
    const leases = (await Promise.all(all)).filter(Boolean);
    const { uuid, mtime, ttl, owner, token } = JSON.parse(await file());
    for (const lease of leases) await locks.releaseProjectLock(lease);
    return [leases.length, uuid === leases[0].leaseId, ttl, token === leases[0].token, recent(Date.parse(mtime)),
      /^http-127-0-0-1.*-\w{8}$/.test(owner), /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/.test(uuid)];
  }, [1, true, 30000, true, true, true, true]],
  'an unreadable file is held until one TTL after its modification':
    [() => write('{"uuid":').then(failing), ['fallback-conflict', true]],
  'a file whose times contradict one another is held likewise':
    [() => write(record(1000, 2 * 86_400_000)).then(failing), ['fallback-conflict', true]],
  'a file that another clock has dated ahead is held while it changes, and for one TTL after': [async () => {
    const got = [];
    for (const ahead of [3_600_000, 3_600_001, 3_600_002]) {
      await write(record(1500, -ahead));
      got.push(await denied({ retryLimit: 1 }));
      await sleep(800);
    }
    const lease = await take({ backoffMs: [100], retryLimit: 99 });
    const { mtime } = JSON.parse(await file());
    await locks.releaseProjectLock(lease);
    return [...got, recent(Date.parse(mtime))];
  }, ['fallback-conflict', 'fallback-conflict', 'fallback-conflict', true]],
  'tokens grow, also if a clock was set back': [async () => {
    const before = Date.now() + 1e6;
    await write(JSON.stringify({ ...JSON.parse(record(1000, 1000)), token: before }));
    return (await locks.withProjectLock(({ token }) => token, quick)) - before;
  }, 1],
  'a lease whose file another has taken is stale, and that file stays': [async () => {
    const lease = await take();
    await write(record(1e6));
    const failed = [await renews(lease), await releases(lease, { force: true })];
    return [...failed, readonly, JSON.parse(await file()).uuid];
  }, ['lease-stale', 'none', ['lease-stale'], 'another']],
  'a page that ends after its deadline leaves the file, which another may have taken': [async () => {
    await take();
    await write(record(1e6));
    performance.now = () => Infinity;
    dispatchEvent(new PageTransitionEvent('pagehide'));
    delete performance.now;
    return JSON.parse(await file()).uuid;
  }, 'another'],
  'a lock of a longer name is another one': [() => locks.withProjectLock(
    () => locks.withProjectLock(() => 'both', { ...quick, resource: 'imgponic:project-2' }), quick), 'both'],
  'without https, Web Locks and files are missing, and the error says so': [async () => {
    const { storage } = navigator;
    Object.defineProperty(navigator, 'storage', { value: undefined, configurable: true });
    Object.defineProperty(globalThis, 'isSecureContext', { value: false, configurable: true, writable: true });
    const { code, retryable, context, message } = await take().catch((error) => error);
    globalThis.isSecureContext = true;
    const other = await take().catch((error) => error);
    Object.defineProperty(navigator, 'storage', { value: storage, configurable: true });
    return [code, retryable, context.error, message.includes('https'), other.context.error];
  }, ['acquire-denied', false, 'insecure_context', true, 'no_file_system']],
  'a lease is confirmed right before a write': [() => locks.withProjectLock(async (lease) => {
    const { token, validForMs } = await locks.confirmProjectLock(lease);
    await (await folder()).removeEntry('.lock');
    return [token === lease.token, validForMs > 0 && validForMs <= 30000, await confirms(lease)];
  }, quick).catch(({ code }) => [code, readonly]), ['lease-stale', ['lease-stale']]],
  'an abort during the acquisition leaves no file and is not read-only': [async () => {
    const abort = new AbortController();
    const { postMessage } = Worker.prototype;
    Worker.prototype.postMessage = function (data) {
      postMessage.call(this, data);
      if (data.method === 'POST') abort.abort();
    };
    const failed = await denied({ signal: abort.signal });
    Worker.prototype.postMessage = postMessage;
    return [failed, await file(), readonly];
  }, ['AbortError', 'NotFoundError', []]],
  'a heartbeat renews the file': [async () => {
    const lease = await take({ heartbeatIntervalMs: 3000 });
    const { mtime } = JSON.parse(await file());
    await next('lock:renewed');
    const later = JSON.parse(await file());
    await locks.releaseProjectLock(lease);
    return [later.uuid === lease.leaseId, later.token === lease.token, Date.parse(later.mtime) > Date.parse(mtime)];
  }, [true, true, true]],
  "each event is a line of telemetry with its fields, without an error's text": [async () => {
    const lines = [];
    const stop = locks.subscribeLockTelemetry((line) => lines.push(line));
    const lease = await take();
    await denied({ retryLimit: 1 });
    await locks.renewProjectLock(lease);
    await locks.releaseProjectLock(lease);
    stop();
    const fields = {};
    for (const { feature, type, time, ...rest } of lines.map((line) => JSON.parse(line))) {
      if (feature !== 'autosave' || !Date.parse(time)) continue;
      fields[type.replace('autosave.lock.', '')] = Object.keys(rest).sort().join(' ') + (rest.alias ?? '');
    }
    return [lines.join('').includes('project lock:'), fields];
  }, [false, {
    attempt: 'leaseId retry strategy',
    error: 'code retry retryable strategy',
    waiting: 'retry strategy waitMs',
    'fallback-engaged': 'reason strategy',
    acquired: 'expiresAt leaseId strategy',
    'renew-scheduled': 'expiresAt leaseId nextHeartbeatInMs strategy',
    warning: 'warning',
    'readonly-entered': 'alias reason retryautosave.lock.readonly',
    renewed: 'expiresAt leaseId retry strategy',
    'release-requested': 'expiresAt force leaseId strategy',
    released: 'durationMs leaseId strategy',
  }]],
  "an abort ends a renewal's wait and the work's signal, not the lease": [async () => {
    const abort = new AbortController();
    const { signal } = abort;
    return locks.withProjectLock(async (lease, lost) => {
      abort.abort();
      return [lost.aborted, await failure(locks.renewProjectLock(lease, { signal })), await confirms(lease)];
    }, { ...quick, signal });
  }, [true, 'AbortError', 'none']],
};
