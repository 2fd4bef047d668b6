package taskauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	fetchTimeout = 5 * time.Second
	maxPage      = 1 << 20 // bytes
	maxStale     = 24 * time.Hour
	maxWait      = 3 * time.Second  // of one Check
	askEvery     = 10 * time.Second // between fetches because of an unknown key

	minRefresh, maxRefresh = time.Minute, time.Hour
	minBackoff, maxBackoff = 500 * time.Millisecond, time.Minute
)

// keyring has the newest good keys. Only run fetches.
type keyring struct {
	source
	of   signer
	own  *http.Transport // the client's, if it is ours
	wake chan struct{}   // asks run for a fetch

	mu      sync.Mutex
	set     *keySet
	got     time.Time     // when set was
	pending bool          // a fetch is under way or asked for
	stopped bool          // run has returned
	asked   time.Time     // when Check last caused a fetch
	ended   chan struct{} // closed at the end of the pending fetch, then replaced
}

// source is where the keys come from and who is told.
type source struct {
	url    string
	client *http.Client // nil: a private one, which follows no redirect
	log    *slog.Logger // nil: silent
}

func newKeyring(of signer, from source) *keyring {
	k := &keyring{
		source: from, of: of, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		pending: true, // run begins with a fetch, and who comes before it joins that
	}
	if k.client == nil {
		k.own = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: fetchTimeout}).DialContext,
			TLSHandshakeTimeout:   fetchTimeout,
			ResponseHeaderTimeout: fetchTimeout,
			IdleConnTimeout:       time.Minute,
			ForceAttemptHTTP2:     true,
		}
		k.client = &http.Client{
			Transport:     k.own,
			Timeout:       fetchTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	return k
}

// holding returns the keys once they hold kid. If they do not, it asks for a
// fetch, or joins the one that is pending, and waits for it.
func (k *keyring) holding(ctx context.Context, kid string) (*keySet, error) {
	var late <-chan time.Time
	for {
		set, ended := k.look(kid, time.Now())
		if set.holds(kid) {
			return set, nil
		}
		refused := errUnknownKey
		if set == nil {
			refused = ErrNoKeys
		}
		if ended == nil {
			return nil, refused
		}
		if late == nil {
			late = time.After(maxWait)
		}
		select {
		case <-ended:
		case <-late:
			return nil, refused
		case <-ctx.Done():
			return nil, refused
		}
	}
}

// look returns the keys, nil if they are none or too old, and, if they lack kid,
// the end of the fetch that may bring it: nil if none is pending and it is too
// early for another, so that forged ids cannot make us hammer the page.
func (k *keyring) look(kid string, now time.Time) (*keySet, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	set := k.set
	if now.Sub(k.got) >= maxStale {
		set = nil
	}
	switch {
	case set.holds(kid) || k.stopped:
		return set, nil
	case k.pending:
	case !k.asked.IsZero() && now.Sub(k.asked) < askEvery:
		return set, nil
	default:
		k.asked, k.pending = now, true
		k.wake <- struct{}{} // never full: there is one for each pending
	}
	return set, k.ended
}

// run fetches at once, before the keys are stale, when asked, and again with a
// growing pause after a fetch that came to nothing.
func (k *keyring) run(ctx context.Context) {
	defer k.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.begin()
		set, fresh, err := k.fetch(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := min(max(fresh*9/10, minRefresh), maxRefresh)
		switch {
		case err != nil:
			k.log.WarnContext(ctx, k.of.keys+" not fetched", "reason", err.Error(), "failures", failures+1) //nolint:sloglint // one of two
			pause = min(minBackoff<<min(failures, 10), maxBackoff)
			failures++
		case failures > 0 || !k.any():
			k.log.InfoContext(ctx, k.of.keys+" fetched", "keys", len(set.kids)) //nolint:sloglint // one of two
			failures = 0
		}
		k.end(set)
		timer.Reset(pause)
	}
}

func (k *keyring) any() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set != nil
}

// begin makes the fetch that starts now the pending one, also where one was asked
// for and the timer came first.
func (k *keyring) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending = true
	select {
	case <-k.wake:
	default:
	}
}

// end publishes what was fetched, if anything, to those who wait.
func (k *keyring) end(set *keySet) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if set != nil {
		k.set, k.got = set, time.Now()
	}
	k.pending = false
	close(k.ended)
	k.ended = make(chan struct{})
}

func (k *keyring) stop() {
	k.mu.Lock()
	k.stopped = true
	close(k.ended)
	k.mu.Unlock()
	if k.own != nil {
		k.own.CloseIdleConnections()
	}
}

// fetch gets the page and says for how long it is fresh. Its errors are of a
// fixed vocabulary: the transport's own may hold what a server chose.
func (k *keyring) fetch(ctx context.Context) (*keySet, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, http.NoBody)
	if err != nil {
		return nil, 0, errors.New("no request")
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, 0, unanswered(ctx)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("status %d", resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case err != nil:
		return nil, 0, unanswered(ctx)
	case len(data) > maxPage:
		return nil, 0, errors.New("over 1 MiB")
	}
	set, err := readPage(data, k.of.usable)
	return set, freshness(resp.Header), err
}

func unanswered(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("no answer in time")
	}
	return errors.New("no answer")
}

// freshness is max-age less age; 0 where there is no legible max-age.
func freshness(h http.Header) time.Duration {
	var fresh time.Duration
	for directive := range strings.SplitSeq(h.Get("Cache-Control"), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
		if strings.EqualFold(name, "max-age") {
			fresh = seconds(value)
		}
	}
	return fresh - seconds(h.Get("Age"))
}

// seconds reads a header's number of them; more than a day is a day.
func seconds(s string) time.Duration {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, 24*time.Hour)
}
