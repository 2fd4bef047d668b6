package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// failing is an analysis x in a Firestore that refuses to be read with the code,
// unless that is OK, and a call to follow it with.
func failing(t *testing.T) (b *emulatortest.Backend, code *atomic.Uint32, out *emulatortest.Log, follow func() error) {
	b, code, out = emulatortest.Embedded(t), &atomic.Uint32{}, &emulatortest.Log{}
	a, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if c := codes.Code(code.Load()); c != codes.OK {
				return nil, status.Error(c, "as the test wants")
			}
			return open(ctx, d, cc, method, opts...)
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	b.Put(t, "x", map[string]any{"status": analysislock.Queued})
	c := newCall(command{}, nil, streams{strings.NewReader(""), out, out}, vars{}.lookup)
	return b, code, out, func() error {
		return c.follow(t.Context(), &client{analyses: a}, []*submitted{{ID: "x", Name: "x"}})
	}
}

func TestWaitingOutlivesAnOutageOfFirestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, code, out, follow := failing(t)
		ended := make(chan error, 1)
		go func() { ended <- follow() }()
		time.Sleep(time.Minute)
		code.Store(uint32(codes.Unavailable))
		time.Sleep(time.Hour)
		code.Store(uint32(codes.OK))
		time.Sleep(time.Minute)
		b.Put(t, "x", map[string]any{"status": analysislock.Ready})
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, want := range []string{"Firestore does not answer; still waiting\n", "Firestore answers again\n", "x READY\n"} {
			if n := strings.Count(out.String(), want); n != 1 {
				t.Errorf("%q %d times, want once, in\n%s", want, n, out)
			}
		}
	})
}

func TestWaitingEndsWhereFirestoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, code, out, follow := failing(t)
		code.Store(uint32(codes.PermissionDenied))
		if err := follow(); status.Code(err) != codes.PermissionDenied || strings.Contains(out.String(), "waiting") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
