package cloudtasks_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/emulator/cloudtasks"
)

func TestAnAnswerOf2xxDeletesTheTaskAndAnyOtherOrNoneIsRetried(t *testing.T) {
	refused := errors.New("refused")
	broken := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(iotest.ErrReader(refused))}
	answers := map[string]worker{
		"none":   func(*http.Request) (*http.Response, error) { return nil, refused },
		"broken": func(*http.Request) (*http.Response, error) { return broken, nil },
	}
	for _, code := range []int{199, 200, 299, 302, 404, 409, 429, 500, 503} {
		answers[fmt.Sprint(code)] = always(code)
	}
	for name, w := range answers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, _ := deliver(t, w, &cloudtaskspb.RetryConfig{MaxAttempts: 2}, post(""))
				want := 2
				if name == "200" || name == "299" {
					want = 1
				}
				if len(all) != want || all[want-1].Attempt != want-1 {
					t.Fatalf("got %+v, want %d attempts", all, want)
				}
				if (name == "none" || name == "broken") && (all[0].Status != 0 || !errors.Is(all[0].Err, refused)) {
					t.Fatalf("got %+v, want no status and the transport's error", all[0])
				}
			})
		})
	}
}

func TestBackoffDoublesThenGrowsLinearlyThenStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry := &cloudtaskspb.RetryConfig{MinBackoff: seconds(10), MaxBackoff: seconds(300), MaxDoublings: 3}
		_, starts := deliver(t, failing(9, 500), retry, post(""))
		// The sums of 10, 20, 40, 80, 160, 240, 300, 300, 300.
		want := []float64{0, 10, 30, 70, 150, 310, 550, 850, 1150, 1450}
		equal(t, "starts", want, starts)
	})
}

func TestRetriesEndAfterMaxAttempts(t *testing.T) {
	for attempts, want := range map[int32]int{1: 1, 3: 3, -1: 151} { // the 151st succeeds
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, _ := deliver(t, failing(150, 500), &cloudtaskspb.RetryConfig{MaxAttempts: attempts}, post("named"))
				if len(all) != want {
					t.Errorf("got %d attempts, want %d", len(all), want)
				}
			})
		})
	}
}

func TestRetryAfterDelaysTheRetry(t *testing.T) {
	for _, c := range []struct {
		name  string
		value func(now time.Time) string
		want  float64
	}{
		{"seconds", func(time.Time) string { return "90" }, 90},
		{"a date", func(now time.Time) string { return now.Add(2 * time.Minute).UTC().Format(http.TimeFormat) }, 120},
		{"sooner than the backoff", func(time.Time) string { return "3" }, 10},
		{"a past date", func(now time.Time) string { return now.Add(-time.Hour).UTC().Format(http.TimeFormat) }, 10},
		{"malformed", func(time.Time) string { return "soon" }, 10},
		{"negative", func(time.Time) string { return "-5" }, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := true
				w := worker(func(*http.Request) (*http.Response, error) {
					if !first {
						return answer(200), nil
					}
					first = false
					return answer(503, "Retry-After", c.value(time.Now())), nil
				})
				_, starts := deliver(t, w, &cloudtaskspb.RetryConfig{MinBackoff: seconds(10)}, post(""))
				equal(t, "starts", []float64{0, c.want}, starts)
			})
		})
	}
}

func TestTasksThatFailedTogetherAreRetriedApart(t *testing.T) {
	for header, from := range map[string]float64{"Retry-After": 30, "X-Other": 10} {
		synctest.Test(t, func(t *testing.T) {
			var seen seen
			w := worker(func(r *http.Request) (*http.Response, error) {
				if r.Header.Get("X-CloudTasks-TaskRetryCount") == "0" {
					return answer(409, header, "30"), nil
				}
				return answer(200), nil
			})
			cloud := openQueue(t, cloudtasks.Options{Transport: w, Observe: seen.observe, Spread: 0.5},
				&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: seconds(10)}})
			start := time.Now()
			for range 100 {
				cloud.create(post(""))
			}
			cloud.idle()
			retries := seen.offsets(start)[100:]
			slices.Sort(retries)
			first, last := retries[0], retries[99]
			n := len(slices.Compact(retries))
			if first < from || first > from*1.1 || last < from*1.4 || last > from*1.5 || n < 90 {
				t.Errorf("%s: %d times of retries, from %v to %v, want them spread over %v to %v", header, n, first, last, from, from*1.5)
			}
		})
	}
}
