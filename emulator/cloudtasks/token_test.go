package cloudtasks_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

const invoker = "invoker@p.iam.gserviceaccount.com"

// withToken makes the task carry the invoker's ID token for this audience.
func withToken(task *cloudtaskspb.Task, audience string) *cloudtaskspb.Task {
	task.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{
		OidcToken: &cloudtaskspb.OidcToken{ServiceAccountEmail: invoker, Audience: audience},
	}
	return task
}

// mint numbers its tokens and fails the first n times.
type mint struct {
	mu   sync.Mutex
	n    int
	made int
}

var errMint = errors.New("no token")

func (m *mint) token(email, audience string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n > 0 {
		m.n--
		return "", errMint
	}
	m.made++
	return fmt.Sprintf("%s|%s|%d", email, audience, m.made), nil
}

// headersOf collects the Authorization of every request before next answers it.
type headersOf struct {
	next worker
	mu   sync.Mutex
	all  [][]string
}

func (h *headersOf) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	h.all = append(h.all, r.Header.Values("Authorization"))
	h.mu.Unlock()
	return h.next(r)
}

func TestEveryDeliveryCarriesAFreshTokenOfItsOwnOrIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		h := &headersOf{next: failing(2, 503)}
		m := &mint{n: 1}
		c := openQueue(t, cloudtasks.Options{Transport: h, Token: m.token, Observe: seen.observe,
			Extra: func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }}, nil)
		task := withToken(post("a"), "https://aud.test")
		task.GetHttpRequest().Headers = map[string]string{"authorization": "Bearer creator's"}
		c.create(task)
		c.idle()
		var want [][]string
		if first := seen.deliveries()[0]; first.Status != 0 || !errors.Is(first.Err, errMint) {
			t.Errorf("got %+v, want an attempt that sent nothing", first)
		}
		for n := range 4 { // three further attempts and the duplicate
			want = append(want, []string{fmt.Sprintf("Bearer %s|https://aud.test|%d", invoker, n+1)})
		}
		equal(t, "Authorization", want, h.all)
	})
}

func TestOnlyATaskWithAnOIDCTokenIsDispatchedWithOne(t *testing.T) {
	oauth := post("")
	oauth.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OauthToken{
		OauthToken: &cloudtaskspb.OAuthToken{ServiceAccountEmail: invoker},
	}
	creators := func(task *cloudtaskspb.Task) *cloudtaskspb.Task {
		task.GetHttpRequest().Headers = map[string]string{"Authorization": "creator's"}
		return task
	}
	m := &mint{}
	for name, c := range map[string]struct {
		task  *cloudtaskspb.Task
		token func(email, audience string) (string, error)
		want  []string
	}{
		"no token":         {creators(post("")), m.token, []string{"creator's"}},
		"oauth_token":      {creators(oauth), m.token, nil},
		"no Options.Token": {creators(withToken(post(""), "x")), nil, nil},
		"no audience":      {withToken(post(""), ""), m.token, []string{"Bearer " + invoker + "|" + target + "|1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &headersOf{next: always(200)}
				cloud := openQueue(t, cloudtasks.Options{Transport: h, Token: c.token}, nil)
				cloud.create(c.task)
				cloud.idle()
				equal(t, "Authorization", [][]string{c.want}, h.all)
			})
		})
	}
	if m.made != 1 {
		t.Errorf("got %d tokens, want 1", m.made)
	}
}
