package cloudtasks_test

import (
	"errors"
	"fmt"
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
	token := &cloudtaskspb.OidcToken{ServiceAccountEmail: invoker, Audience: audience}
	task.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{OidcToken: token}
	return withHeaders(task, map[string]string{"authorization": "creator's"})
}

// mint numbers its tokens and fails the first n times.
type mint struct {
	mu      sync.Mutex
	n, made int
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

// Every delivery carries a token of its own, or is not sent.
func TestToken_Fresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := &recording{next: failing(2, 503)}, &mint{n: 1}
		extra := func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }
		c := openQueue(t, cloudtasks.Options{Transport: w, Token: m.token, Extra: extra}, nil)
		c.create(withToken(post("a"), "https://aud.test"))
		c.idle()
		if first := c.deliveries()[0]; first.Status != 0 || !errors.Is(first.Err, errMint) {
			t.Errorf("got %+v, want an attempt that sent nothing", first)
		}
		var want [][]string
		for n := range 4 { // three further attempts and the duplicate
			want = append(want, []string{fmt.Sprintf("Bearer %s|https://aud.test|%d", invoker, n+1)})
		}
		equal(t, "Authorization", want, w.values("Authorization"))
	})
}

func TestToken_Kinds(t *testing.T) {
	creators := withHeaders(post(""), map[string]string{"Authorization": "creator's"})
	oauth := withToken(post(""), "x")
	oauth.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OauthToken{
		OauthToken: &cloudtaskspb.OAuthToken{ServiceAccountEmail: invoker},
	}
	m := &mint{}
	for name, tc := range map[string]struct {
		task  *cloudtaskspb.Task
		token func(email, audience string) (string, error)
		want  []string
	}{
		"no token":         {creators, m.token, []string{"creator's"}},
		"oauth_token":      {oauth, m.token, nil},
		"no Options.Token": {withToken(post(""), "x"), nil, nil},
		"no audience":      {withToken(post(""), ""), m.token, []string{"Bearer " + invoker + "|" + target + "|1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &recording{next: always(200)}
				c := openQueue(t, cloudtasks.Options{Transport: w, Token: tc.token}, nil)
				c.create(tc.task)
				c.idle()
				equal(t, "Authorization", [][]string{tc.want}, w.values("Authorization"))
			})
		})
	}
	equal(t, "tokens made", 1, m.made)
}
