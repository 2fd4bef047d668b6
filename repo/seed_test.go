package repo

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
)

// plainLock is the lock as it is usually written, over client.RunTransaction:
// acquire is seed 003's transaction word for word, refresh and release are what
// the seed asks for. It is here to be measured against.
type plainLock struct {
	client *firestore.Client
	ttl    time.Duration
}

func (p plainLock) ref(id string) *firestore.DocumentRef {
	return p.client.Collection("analyses").Doc(id)
}

func (p plainLock) acquire(ctx context.Context, id, owner string) (acquired bool, err error) {
	err = p.client.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		acquired = false
		snap, err := tx.Get(p.ref(id))
		if err != nil {
			return err
		}
		data := snap.Data()
		if data["status"] == analysislock.Ready || data["status"] == analysislock.Failed {
			return nil
		}
		now := time.Now()
		expires, _ := parseTime(data["lockExpiresAt"])
		if owner, _ := data["lockOwner"].(string); owner != "" && expires.After(now) {
			return nil
		}
		acquired = true
		return tx.Update(p.ref(id), []firestore.Update{
			{Path: "lockOwner", Value: owner},
			{Path: "lockExpiresAt", Value: timeValue(now.Add(p.ttl))},
		})
	})
	return acquired, err
}

func (p plainLock) edit(ctx context.Context, id, owner string, updates ...firestore.Update) error {
	return p.client.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		snap, err := tx.Get(p.ref(id))
		if err != nil || snap.Data()["lockOwner"] != owner {
			return err
		}
		return tx.Update(p.ref(id), updates)
	})
}

// finish writes the status and the result, then releases as seed 003 asks: two
// transactions.
func (p plainLock) finish(ctx context.Context, id, owner string, result any) error {
	if err := p.edit(ctx, id, owner, firestore.Update{Path: "status", Value: analysislock.Ready}, firestore.Update{Path: "result", Value: result}); err != nil {
		return err
	}
	return p.edit(ctx, id, owner, firestore.Update{Path: "lockOwner", Value: firestore.Delete}, firestore.Update{Path: "lockExpiresAt", Value: firestore.Delete})
}

func (p plainLock) refresh(ctx context.Context, id, owner string) error {
	return p.edit(ctx, id, owner, firestore.Update{Path: "lockExpiresAt", Value: timeValue(time.Now().Add(p.ttl))})
}

// roundTrip is added to each call, so that times are round trips and not the
// emulator's own work.
const roundTrip = 5 * time.Millisecond

var slow = []grpc.DialOption{
	grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		time.Sleep(roundTrip)
		return invoke(ctx, method, req, reply, cc, opts...)
	}),
	grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		time.Sleep(roundTrip)
		return open(ctx, desc, cc, method, opts...)
	}),
}

// BenchmarkGuardAgainstPlainTransaction reports, for each operation, the calls
// and the billed reads and writes of one, beside its time with a round trip of
// 5 ms on the embedded server. Contention in production is unmeasured.
func BenchmarkGuardAgainstPlainTransaction(b *testing.B) {
	ctx := context.Background()
	type subject struct {
		acquire, refresh, finish, skip func(id string) error
	}
	subjects := map[string]func(b *testing.B, e *emulatortest.Backend) subject{
		"guard": func(b *testing.B, e *emulatortest.Backend) subject {
			a, other := open(b, e, slow...), open(b, e, slow...)
			return subject{
				acquire: func(id string) error { _, err := a.AcquireAnalysisLock(ctx, id, "w/"+id, 0); return err },
				refresh: func(id string) error { return a.RefreshAnalysisLock(ctx, id, "w/"+id, 0) },
				finish:  func(id string) error { return a.Complete(ctx, id, "w/"+id, "done") },
				skip:    func(id string) error { _, err := other.AcquireAnalysisLock(ctx, id, "v/"+id, 0); return err },
			}
		},
		"plain": func(b *testing.B, e *emulatortest.Backend) subject {
			client, err := firestore.NewClient(ctx, e.Project, e.Client(b, slow...)...)
			if err != nil {
				b.Fatal(err)
			}
			p := plainLock{client: client, ttl: 5 * time.Minute}
			return subject{
				acquire: func(id string) error { _, err := p.acquire(ctx, id, "w/"+id); return err },
				refresh: func(id string) error { return p.refresh(ctx, id, "w/"+id) },
				finish:  func(id string) error { return p.finish(ctx, id, "w/"+id, "done") },
				skip:    func(id string) error { _, err := p.acquire(ctx, id, "v/"+id); return err },
			}
		},
	}
	for _, name := range []string{"guard", "plain"} {
		b.Run(name, func(b *testing.B) {
			e := emulatortest.Embedded(b)
			s, seeder := subjects[name](b, e), open(b, e)
			steps := map[string]*struct {
				run   func(id string) error
				spent time.Duration
				calls int
			}{
				"acquire": {run: s.acquire}, "skip": {run: s.skip}, "refresh": {run: s.refresh}, "finish": {run: s.finish},
			}
			var reads, writes int64
			for i := range b.N {
				id := fmt.Sprint(i)
				if err := seeder.Create(ctx, id, "input"); err != nil {
					b.Fatal(err)
				}
				before := e.Server.Usage()
				for _, op := range []string{"acquire", "skip", "refresh", "finish"} {
					calls, start := e.Calls.Total(), time.Now()
					if err := steps[op].run(id); err != nil {
						b.Fatalf("%s: %v", op, err)
					}
					steps[op].spent += time.Since(start)
					steps[op].calls += e.Calls.Total() - calls
				}
				after := e.Server.Usage()
				reads, writes = reads+after.Reads-before.Reads, writes+after.Writes-before.Writes
			}
			for op, st := range steps {
				b.ReportMetric(float64(st.calls)/float64(b.N), op+"-calls")
				b.ReportMetric(float64(st.spent.Microseconds())/1000/float64(b.N), op+"-ms")
			}
			b.ReportMetric(float64(reads)/float64(b.N), "reads")
			b.ReportMetric(float64(writes)/float64(b.N), "writes")
			b.ReportMetric(0, "ns/op")
		})
	}
}
