package cloudtasks_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

// listener is a real worker that records its requests. It answers codes, and then
// always the last of them.
type listener struct {
	*httptest.Server
	mu     sync.Mutex
	hits   []string // method, host, path and body
	header []http.Header
}

func listen(t *testing.T, codes ...int) *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hits = append(l.hits, fmt.Sprint(r.Method, " http://", r.Host, r.URL, " ", string(body)))
		l.header = append(l.header, r.Header)
		w.Header().Set("Location", l.URL+"/elsewhere")
		w.WriteHeader(codes[min(len(l.hits), len(codes))-1])
	}))
	t.Cleanup(l.Close)
	return l
}

// A worker sees the headers of the real service.
func TestHeaders(t *testing.T) {
	l := listen(t, 500, 404, 302, 200) // a redirect is not followed
	c := openQueue(t, cloudtasks.Options{}, retrying(&cloudtaskspb.RetryConfig{MinBackoff: seconds(0.001)}))
	task := withHeaders(at("id", time.Now().Add(time.Millisecond)), map[string]string{
		"X-Mine": "kept", "x-cloudtasks-taskretrycount": "99", "X-CloudTasks-Extra": "dropped",
		"Host": "elsewhere.test", "Content-Length": "3", "User-Agent": "mine",
	})
	task.GetHttpRequest().Url = l.URL + "/run?x=1"
	eta := c.create(task).ScheduleTime.AsTime()
	c.idle()
	sent := "POST " + l.URL + "/run?x=1 payload"
	equal(t, "requests", []string{sent, sent, sent, sent}, l.hits)
	equal(t, "first headers", http.Header{
		"Accept-Encoding":                 {"gzip"},
		"Content-Length":                  {"7"},
		"User-Agent":                      {"Google-Cloud-Tasks"},
		"X-Mine":                          {"kept"},
		"X-Cloudtasks-Queuename":          {"q"},
		"X-Cloudtasks-Taskname":           {"id"},
		"X-Cloudtasks-Tasketa":            {fmt.Sprintf("%d.%06d", eta.Unix(), eta.Nanosecond()/1000)},
		"X-Cloudtasks-Taskretrycount":     {"0"},
		"X-Cloudtasks-Taskexecutioncount": {"0"},
	}, l.header[0])
	// The 500 did not count as an execution, the 404 did.
	for i, want := range []string{"[1] [0] [500] []", "[2] [1] [404] []", "[3] [2] [302] []"} {
		var got []string
		for name := range strings.FieldsSeq("RetryCount ExecutionCount PreviousResponse RetryReason") {
			got = append(got, fmt.Sprint(l.header[i+1].Values("X-CloudTasks-Task"+name)))
		}
		equal(t, "headers of a retry", want, strings.Join(got, " "))
	}
}

func TestEmptyPost(t *testing.T) {
	l := listen(t, 200)
	c := openQueue(t, cloudtasks.Options{}, nil)
	task := post("")
	task.GetHttpRequest().Url, task.GetHttpRequest().Body = l.URL, nil
	c.create(task)
	c.idle()
	equal(t, "requests", []string{"POST " + l.URL + "/ "}, l.hits)
	equal(t, "types and lengths", [][]string{nil, {"0"}}, [][]string{
		l.header[0].Values("Content-Type"), l.header[0].Values("Content-Length"),
	})
}
