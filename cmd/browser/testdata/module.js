// The cases of TestLocksJS: a script, and what it returns. See instrumented.js for what they use.
globalThis.cases = {
  'an abort during the request releases both locks before it throws': [async () => {
    const abort = new AbortController();
    globalThis.fetch = (url, init) => {
      const answer = real(url, init);
      if (init.method === 'POST') abort.abort();
      return answer;
    };
    const failed = await denied({ signal: abort.signal });
    const state = await (await real('/api/documents/room/lock')).json();
    const { held } = await navigator.locks.query();
    return [failed, state.is_locked, held.length, readonly, events.map((e) => e.type)];
  }, ['AbortError', false, 0, [], ['lock:attempt']]],
  'an acquisition whose answer is lost frees what it took, by a request that outlives the page': [async () => {
    const sent = [];
    globalThis.fetch = async (url, init) => {
      sent.push(init.method, init.keepalive);
      const answer = await real(url, init);
      if (init.method === 'POST') throw new TypeError('injected');
      return answer;
    };
    return [await denied({ retryLimit: 1 }), sent];
  }, ['acquire-timeout', ['POST', false, 'DELETE', true]]],
  "a page of a proxy is no answer of the server's": [async () => {
    globalThis.fetch = async () => new Response('<html>');
    return denied({ retryLimit: 1 });
  }, 'acquire-timeout'],
  'a Web Lock that the browser grants after the timeout is given back': [async () => {
    const { locks: manager } = navigator;
    let late;
    manager.request = (...of) => (late = sleep(600).then(() => LockManager.prototype.request.apply(manager, of)));
    const failed = await denied({ heartbeatIntervalMs: 400, retryLimit: 1 });
    delete manager.request;
    return [failed, await Promise.race([late, sleep(2000, 'held')]) ?? 'given back'];
  }, ['acquire-timeout', 'given back']],
  'an abort during a wait ends it, and the page can ask again': [async () => {
    const abort = new AbortController();
    fail('POST', 1);
    next('lock:waiting').then(() => abort.abort());
    const failed = await denied({ backoffMs: [1e9], signal: abort.signal });
    await locks.releaseProjectLock(await take());
    return [failed, readonly];
  }, ['AbortError', []]],
  'unsubscribing ends the events of only that listener, and may be repeated': [async () => {
    const received = [0, 0];
    const listen = () => received[0]++;
    const stops = [locks.subscribeLockEvents(listen), locks.subscribeLockEvents(() => received[1]++)];
    const lease = await take();
    stops[0](); stops[0]();
    await locks.releaseProjectLock(lease);
    stops[1]();
    return received;
  }, [3, 6]],
  'a list of three waits means four attempts, unless their number is given': [async () => {
    const made = async (options) => {
      fail('POST', 9);
      await denied(options);
      return events.splice(0).filter(({ type }) => type === 'lock:attempt').length;
    };
    const backoffMs = [1, 2, 3];
    return [await made({ backoffMs }), await made({ backoffMs, retryLimit: 3 }),
      await made({ backoffMs, backoff: { maxAttempts: 2 } }),
      await made({ backoffMs: undefined, backoff: { initialMs: 1 } }), await made({ backoffMs: [] })];
  }, [4, 3, 2, 3, 1]],
  'too many locks are a refusal, not a request without an answer': [async () => {
    const sent = [];
    globalThis.fetch = async (url, { method }) => {
      sent.push(method);
      return new Response('{"error":"too_many_locks"}', { status: 429 });
    };
    const { code, retryable, context } = await take({ retryLimit: 2 }).catch((error) => error);
    return [code, retryable, context.error, readonly, events.filter(({ retryable }) => retryable).length, sent];
  }, ['acquire-denied', false, 'too_many_locks', ['acquire-denied'], 1, ['POST', 'POST']]],
  "answers that pass are tried again and keep the lock, also after an abort of its acquisition's signal": [async () => {
    const abort = new AbortController();
    const lease = await take({ signal: abort.signal });
    abort.abort();
    const statuses = [408];
    globalThis.fetch = async (...request) =>
      (statuses.length > 0 ? new Response('{}', { status: statuses.shift() }) : real(...request));
    const confirmed = await confirms(lease);
    statuses.push(429, 503);
    const renewed = [renews(lease), renews(lease)]; // one renewal
    const outcomes = await Promise.all(renewed);
    statuses.push(408, 429);
    await locks.releaseProjectLock(lease);
    return [confirmed, ...outcomes, readonly];
  }, ['renew-failed', 'none', 'none', []]],
  'failed heartbeats with a successful one between them keep the lock': [() => locks.withProjectLock(async (lease) => {
    const outcomes = [];
    for (const failures of [1, 0, 1, 0, 1]) {
      fail('PUT', failures);
      outcomes.push(await renews(lease));
    }
    return [outcomes, readonly];
  }, { ...quick, retryLimit: 1 }), [['renew-failed', 'none', 'renew-failed', 'none', 'renew-failed'], []]],
  'an error of a listener or of onReadonly changes nothing, and the page gets it': [async () => {
    const reported = [];
    const report = globalThis.reportError;
    globalThis.reportError = ({ message }) => reported.push(message);
    const stop = locks.subscribeLockEvents(({ type }) => { if (type === 'lock:acquired') throw new Error(type); });
    const onReadonly = () => { throw new Error('mine'); };
    await locks.withProjectLock(() => denied({ retryLimit: 1, onReadonly }), quick);
    stop();
    globalThis.reportError = report;
    return [reported, events.at(-1).type];
  }, [['lock:acquired', 'mine'], 'lock:released']],
  'a wait is 4 s at most, unless a longer one is the first': [async () => {
    const longest = [];
    for (const backoff of [{ initialMs: 1, factor: 1e6 }, { initialMs: 5000, factor: 1 }]) {
      const abort = new AbortController();
      fail('POST', 9);
      const stop = locks.subscribeAllLockEvents(({ type, waitMs }) => {
        if (type === 'lock:waiting' && waitMs > 1) { longest.push(waitMs); abort.abort(); }
      });
      await denied({ backoffMs: undefined, backoff, signal: abort.signal });
      stop();
    }
    return longest;
  }, [4000, 5000]],
  'an error of the work releases the lock and is thrown': [async () => {
    const { message } = await locks.withProjectLock(() => { throw new Error('mine'); }, quick).catch((error) => error);
    return [message, events.at(-1).type];
  }, ['mine', 'lock:released']],
  'with releaseOnError false an error of the work leaves the lock to the caller': [async () => {
    let mine;
    const work = (lease) => { mine = lease; throw new Error('mine'); };
    await failure(locks.withProjectLock(work, { ...quick, releaseOnError: false }));
    const confirmed = await locks.confirmProjectLock(mine);
    await locks.releaseProjectLock(mine);
    return confirmed.token === mine.token && confirmed.validForMs > 0;
  }, true],
  "a release during the work aborts its signal first, and the work's result counts": [async () => {
    const seen = [];
    globalThis.fetch = (url, init) => { seen.push(init.method); return real(url, init); };
    const work = (after) => failure(locks.withProjectLock(async (lease, lost) => {
      const again = new Promise((resolve) => {
        lost.onabort = () => { seen.push(lost.reason.name); resolve(locks.releaseProjectLock(lease)); };
      });
      await Promise.all([locks.releaseProjectLock(lease), again]);
      after(lost);
    }, quick));
    return [await work(() => {}), await work((lost) => lost.throwIfAborted()), seen, readonly];
  }, ['none', 'AbortError', ['POST', 'AbortError', 'DELETE', 'POST', 'AbortError', 'DELETE'], []]],
  "a release that arrives late does not free the page's next lease": [async () => {
    const late = [];
    globalThis.fetch = (url, init) => {
      if (init.method !== 'DELETE') return real(url, init);
      late.push(() => real(url, { method: 'DELETE', headers: init.headers }));
      return Promise.reject(new TypeError('injected'));
    };
    await failure(locks.releaseProjectLock(await take({ ownerId: 'owner' })));
    globalThis.fetch = real;
    await late.shift()(); // frees the room
    return locks.withProjectLock(async (lease) => {
      const statuses = await Promise.all(late.map((send) => send().then(({ status }) => status)));
      return [statuses, await confirms(lease)];
    }, { ...quick, ownerId: 'owner' });
  }, [[403, 403], 'none']],
  'the next heartbeat is 10 s from now or a margin before the end': [async () => {
    const due = async (options) => {
      const scheduled = next('lock:renew-scheduled');
      const lease = await take(options);
      await locks.releaseProjectLock(lease);
      return [lease.ttlMs, Math.round((await scheduled).nextHeartbeatInMs / 1000)];
    };
    const ours = [await due({}), await due({ preferredStrategy: 'file-lock' }),
      await due({ ttlMs: 10000, heartbeatIntervalMs: 60000 })];
    globalThis.fetch = patched({ ttl_ms: 5000 });
    return [...ours, await due({})]; // the last one's is the server's
  }, [[25000, 10], [30000, 10], [10000, 4], [5000, 2]]],
  "a lease is trusted for nine tenths of the server's TTL at most": [async () => {
    const trusted = async (options, ttl) => {
      globalThis.fetch = patched({ ttl_ms: ttl });
      const lease = await take(options);
      await locks.releaseProjectLock(lease);
      const part = (Date.parse(lease.expiresAt) - Date.parse(lease.acquiredAt)) / ttl;
      return part <= 0.9 && part > 0.2;
    };
    return [await trusted({ preferredStrategy: 'file-lock' }, 30000), await trusted({ ttlMs: 60000 }, 10000)];
  }, [true, true]],
  'a slow answer does not extend the trust in the lease': [async () => {
    globalThis.fetch = (...of) => real(...of).then((answer) => sleep(500, answer));
    const lease = await take({ ttlMs: 25000 });
    const left = Date.parse(lease.expiresAt) - Date.now();
    const renewed = await locks.renewProjectLock(lease, { ttlMs: 20000 });
    const leftThen = Date.parse(renewed.expiresAt) - Date.now();
    const { validForMs } = await locks.confirmProjectLock(lease);
    globalThis.fetch = () => sleep(500, new Response('{"valid_for_ms":10000}'));
    const confirmed = await locks.confirmProjectLock(lease);
    globalThis.fetch = real;
    await locks.releaseProjectLock(lease);
    return [left <= 24501, leftThen <= 19501, validForMs <= 19001, confirmed.validForMs <= 9501, left > 15000];
  }, [true, true, true, true, true]],
  'a renewal without an answer ends with the TTL': [async () => {
    globalThis.fetch = (url, init) => (init.method === 'PUT' ? new Promise(() => {}) : real(url, init));
    const over = next('lock:readonly-entered');
    await take({ ttlMs: 2000 });
    return [(await over).info.reason, readonly, events.slice(-2).map(({ type, code }) => [type, code])];
  }, ['lease-stale', ['lease-stale'], [['lock:error', 'lease-stale'], ['lock:readonly-entered', null]]]],
  'a heartbeat that is late by more than an interval is a warning': [async () => {
    const warning = next('lock:warning');
    const renewed = next('lock:renewed');
    const lease = await take({ heartbeatIntervalMs: 400 });
    const busyUntil = performance.now() + 1000;
    while (performance.now() < busyUntil); // due after 400, late after 800
    const { warning: kind, leaseId, lateMs } = await warning;
    await renewed;
    await locks.releaseProjectLock(lease);
    return [kind, leaseId === lease.leaseId, lateMs > 400];
  }, ['heartbeat-delayed', true, true]],
  'without an option the lock is imgponic:project': [() => locks.withProjectLock(async () => {
    const { held } = await navigator.locks.query();
    return held.map(({ name, mode }) => name + ' ' + mode);
  }), ['imgponic:project exclusive']],
  'a lease has these fields, and cannot be changed': [async () => {
    const lease = await locks.withProjectLock((lease) => lease, quick);
    return [Object.isFrozen(lease), Object.keys(lease).sort().join(' ')];
  }, [true,
    'acquiredAt client expiresAt holder leaseId nextHeartbeatAt renewAttempt resource strategy token ttlMs viaFallback']],
  'a lease that was released is stale, and releasing it again does nothing': [async () => {
    const lease = await take();
    await Promise.all([locks.releaseProjectLock(lease), locks.releaseProjectLock(lease)]);
    await locks.releaseProjectLock(lease, { force: true });
    return [await renews(lease), await confirms(lease), readonly, events.length];
  }, ['lease-stale', 'lease-stale', [], 6]],
  'a lease that is released during its confirmation is stale': [async () => {
    const lease = await take();
    globalThis.fetch = async (...of) => {
      globalThis.fetch = real;
      const answer = await real(...of);
      await locks.releaseProjectLock(lease);
      return answer;
    };
    return confirms(lease);
  }, 'lease-stale'],
};
