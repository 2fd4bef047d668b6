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
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	fetchTimeout = 3 * time.Second
	maxPage      = 1 << 20 // bytes
	maxAge       = time.Hour
	pause        = 10 * time.Second // between two fetches
	failurePause = time.Second      // after a fetch that failed
)

// keyring caches the keys of a signer. It fetches them when a token needs them.
type keyring struct {
	KeySource

	page     atomic.Pointer[page]
	fetching chan struct{} // full during a fetch
	next     time.Time     // the earliest time of the next fetch
}

// page is a list of public keys by key id.
type page struct {
	keys      map[string]any
	fetchedAt time.Time
}

func newKeyring(source KeySource) *keyring {
	k := &keyring{KeySource: source, fetching: make(chan struct{}, 1)}
	k.page.Store(&page{})
	k.Log = cmp.Or(k.Log, slog.New(slog.DiscardHandler))
	k.Client = cmp.Or(k.Client, &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	return k
}

// key returns the key with this id. It first fetches the page if the id is unknown or the page is
// older than an hour, unless the last fetch was less than 10 s ago. Callers with an unknown id wait
// for a fetch that is running. If no fetch succeeds, the last page is used, even if it is old.
func (k *keyring) key(id string) (any, error) {
	last := k.page.Load()
	key, found := last.keys[id]
	if found && time.Since(last.fetchedAt) < maxAge {
		return key, nil
	}
	select {
	case k.fetching <- struct{}{}:
	default:
		if found {
			return key, nil
		}
		k.fetching <- struct{}{}
	}
	defer func() { <-k.fetching }()

	if !time.Now().Before(k.next) {
		k.fetch()
	}
	last = k.page.Load()
	key, found = last.keys[id]
	switch {
	case found:
		return key, nil
	case len(last.keys) == 0:
		return nil, ErrNoKeys
	}
	return nil, errUnknownKey
}

// fetch replaces the page. The context of no caller ends it, since all of them need the result.
func (k *keyring) fetch() {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	keys, err := k.get(ctx)
	if err != nil {
		k.next = time.Now().Add(failurePause)
		k.Log.WarnContext(ctx, "keys not fetched", "url", k.KeysURL, "reason", err.Error())
		return
	}
	k.next = time.Now().Add(pause)
	k.page.Store(&page{keys, time.Now()})
}

// get reads the usable keys of the page (RFC 7517). Its errors have fixed texts, since the errors of the
// transport may contain text from a server.
func (k *keyring) get(ctx context.Context) (map[string]any, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.KeysURL, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := k.Client.Do(req)
	if err != nil {
		return nil, errors.New("no answer")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}

	var body struct{ Keys []json.RawMessage }
	if json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&body) != nil {
		return nil, errors.New("not a page of keys")
	}
	keys := map[string]any{}
	for _, raw := range body.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) == nil && key.KeyID != "" { // one of a type that go-jose knows
			keys[key.KeyID] = key.Key
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no usable key")
	}
	return keys, nil
}
