package taskauth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	fetchTimeout = 5 * time.Second
	maxPage      = 1 << 20 // bytes
	refresh      = time.Hour
	maxStale     = 24 * time.Hour
	maxWait      = 3 * time.Second  // of one Check
	askEvery     = 10 * time.Second // between fetches because of an unknown key

	minBackoff, maxBackoff = 500 * time.Millisecond, time.Minute
)

// keyring holds the last good keys. Only run fetches.
type keyring struct {
	KeySource
	signer signer
	wake   chan struct{} // asks run for a fetch

	mu        sync.Mutex
	keys      map[string]any // public keys by key id
	fetchedAt time.Time      // when keys were fetched
	askedAt   time.Time      // when an unknown key last caused a fetch
	fetching  bool           // a fetch is running or requested
	fetched   chan struct{}  // closed at the end of that fetch, then replaced
}

func newKeyring(signer signer, from KeySource) *keyring {
	k := &keyring{
		KeySource: from, signer: signer, wake: make(chan struct{}, 1), fetched: make(chan struct{}),
		fetching: true, // run begins with a fetch
	}
	if k.Client == nil {
		k.Client = &http.Client{
			Timeout: fetchTimeout,
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, DisableKeepAlives: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	k.Log = cmp.Or(k.Log, slog.New(slog.DiscardHandler))
	return k
}

// key returns the key with this id. If the key is unknown, it requests a fetch, unless one is
// running, and waits for the end of the fetch.
func (k *keyring) key(ctx context.Context, id string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for {
		key, fetched, err := k.lookup(id, time.Now())
		if fetched == nil {
			return key, err
		}
		select {
		case <-fetched:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// lookup returns the key with this id, or an error. With an error, fetched is closed at the
// end of the fetch that may get the key; it is nil if the last fetch for an unknown key
// was less than askEvery ago.
func (k *keyring) lookup(id string, now time.Time) (key any, fetched <-chan struct{}, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err = errUnknownKey
	if now.Sub(k.fetchedAt) >= maxStale {
		k.keys, err = nil, ErrNoKeys
	}
	if key, known := k.keys[id]; known {
		return key, nil, nil
	}
	if !k.fetching {
		if now.Sub(k.askedAt) < askEvery {
			return nil, nil, err
		}
		k.askedAt, k.fetching = now, true
		select {
		case k.wake <- struct{}{}:
		default: // run is about to fetch
		}
	}
	return nil, k.fetched, err
}

// run fetches the keys at once, each hour, and when key asks for it. After a failure it
// fetches again, with a growing pause.
func (k *keyring) run(ctx context.Context) {
	failures, logged := 0, false // logged: the present success
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-time.After(wait):
		}

		k.mu.Lock()
		k.fetching = true
		k.mu.Unlock()
		keys, err := k.fetch(ctx)
		if ctx.Err() != nil {
			return
		}

		if err != nil {
			wait = min(minBackoff<<min(failures, 10), maxBackoff)
			failures, logged = failures+1, false
			k.Log.WarnContext(ctx, k.signer.keys+" not fetched", //nolint:sloglint // one of two
				"reason", err.Error(), "failures", failures)
		} else {
			if !logged {
				k.Log.InfoContext(ctx, k.signer.keys+" fetched", "keys", len(keys)) //nolint:sloglint // one of two
			}
			wait, failures, logged = refresh, 0, true
		}
		k.publish(keys)
	}
}

// publish ends a fetch: it stores the keys and wakes the callers of key. keys is nil if the fetch
// failed.
func (k *keyring) publish(keys map[string]any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if keys != nil {
		k.keys, k.fetchedAt = keys, time.Now()
	}
	k.fetching = false
	close(k.fetched)
	k.fetched = make(chan struct{})
}

// fetch gets the page. Its errors have fixed texts, since those of the transport may contain text
// from a server.
func (k *keyring) fetch(ctx context.Context) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.KeysURL, http.NoBody)
	if err != nil {
		return nil, errors.New("no request")
	}
	resp, err := k.Client.Do(req)
	if err != nil {
		return nil, errors.New("no answer")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err != nil {
		return nil, errors.New("no answer")
	}
	return readPage(data, k.signer)
}

// readPage takes the usable keys from a page (RFC 7517). It skips the others.
func readPage(data []byte, signer signer) (map[string]any, error) {
	var page struct{ Keys []json.RawMessage }
	if json.Unmarshal(data, &page) != nil {
		return nil, errors.New("not a page of keys")
	}
	keys := map[string]any{}
	for _, raw := range page.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || k.KeyID == "" || !signer.usable(k) {
			continue
		}
		if (k.Use == "" || k.Use == "sig") && (k.Algorithm == "" || k.Algorithm == string(signer.algorithm)) {
			keys[k.KeyID] = k.Key
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no usable key")
	}
	return keys, nil
}
