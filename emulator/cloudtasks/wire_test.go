package cloudtasks_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

// hit is one request that a worker received over the network.
type hit struct {
	method, host, path, body string
	header                   http.Header
}

// listener is a real worker that records its requests. It answers codes, and then
// always the last of them.
type listener struct {
	*httptest.Server
	mu   sync.Mutex
	hits []hit
}

func listen(t *testing.T, codes ...int) *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hits = append(l.hits, hit{r.Method, r.Host, r.URL.String(), string(body), r.Header})
		w.Header().Set("Location", l.URL+"/elsewhere")
		w.WriteHeader(codes[min(len(l.hits), len(codes))-1])
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *listener) seen() []hit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]hit(nil), l.hits...)
}

// fast retries within milliseconds.
func fast() *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: seconds(0.001)}}
}

func TestAWorkerSeesTheHeadersOfTheRealService(t *testing.T) {
	l := listen(t, 500, 404, 302, 200) // a redirect is not followed
	c := openQueue(t, cloudtasks.Options{}, fast())
	task := at("id", time.Now().Add(time.Millisecond))
	task.GetHttpRequest().Url = l.URL + "/run?x=1"
	task.GetHttpRequest().Headers = map[string]string{
		"X-Mine":                      "kept",
		"x-cloudtasks-taskretrycount": "99",
		"X-CloudTasks-Extra":          "dropped",
		"Host":                        "elsewhere.test",
		"Content-Length":              "3",
		"User-Agent":                  "mine",
	}
	created := c.create(task)
	eta := created.ScheduleTime.AsTime()
	c.idle()
	hits := l.seen()
	if len(hits) != 4 {
		t.Fatalf("got %d requests, want 4", len(hits))
	}
	for _, h := range hits {
		if h.method != "POST" || h.path != "/run?x=1" || h.body != "payload" || "http://"+h.host != l.URL {
			t.Fatalf("got %+v, want the task's own request", h)
		}
	}
	want := http.Header{
		"Accept-Encoding":                 {"gzip"},
		"Content-Length":                  {"7"},
		"User-Agent":                      {"Google-Cloud-Tasks"},
		"X-Mine":                          {"kept"},
		"X-Cloudtasks-Queuename":          {"q"},
		"X-Cloudtasks-Taskname":           {"id"},
		"X-Cloudtasks-Tasketa":            {etaText(eta)},
		"X-Cloudtasks-Taskretrycount":     {"0"},
		"X-Cloudtasks-Taskexecutioncount": {"0"},
	}
	equal(t, "first headers", want, hits[0].header)
	// The 500 did not count as an execution, the 404 did.
	for i, want := range []string{`["1"] ["0"] ["500"] [""]`, `["2"] ["1"] ["404"] [""]`, `["3"] ["2"] ["302"] [""]`} {
		h := hits[i+1].header
		got := fmt.Sprintf("%q %q %q %q", h.Values("X-CloudTasks-TaskRetryCount"), h.Values("X-CloudTasks-TaskExecutionCount"),
			h.Values("X-CloudTasks-TaskPreviousResponse"), h.Values("X-CloudTasks-TaskRetryReason"))
		if got != want {
			t.Fatalf("retry %d: got %s, want %s", i+1, got, want)
		}
	}
}

// etaText is a schedule time as the header shows it: seconds with six decimals.
func etaText(at time.Time) string {
	micros := fmt.Sprintf("%07d", at.UnixMicro())
	return micros[:len(micros)-6] + "." + micros[len(micros)-6:]
}

func TestAnEmptyPostHasNeitherBodyNorContentType(t *testing.T) {
	l := listen(t, 200)
	c := openQueue(t, cloudtasks.Options{}, nil)
	c.create(&cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: l.URL}}})
	c.idle()
	h := l.seen()[0]
	if _, set := h.header["Content-Type"]; set || h.body != "" || h.header.Get("Content-Length") != "0" {
		t.Fatalf("got %+v, want an empty request without Content-Type", h)
	}
}
